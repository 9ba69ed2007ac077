"""Results for people: in the terminal, as Markdown, and as one page of HTML."""
