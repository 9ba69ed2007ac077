#!/usr/bin/env bash
# The step of action.yml that measures: `ringlab guard`, with its verdicts in the summary of the job.
set -euo pipefail

# xargs splits at blanks outside of quotes, and runs nothing that is in them.
mapfile -d '' arguments < <(xargs printf '%s\0' <<<"$ARGUMENTS")
words=(--base "$BASE" --head "$HEAD" --repository "$REPOSITORY" --start "$START" --output "$OUTPUT")
[[ -z $BUILD ]] || words+=(--build "$BUILD")
[[ $ARGUMENTS == *[![:space:]]* ]] || arguments=()
# The first push of a branch has a base of zeros, and a job that somebody starts has none.
if [[ $BASE =~ ^0*$ ]]; then
    echo '::notice title=ringlab guard::there is no base to compare with'
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
ringlab guard "${arguments[@]}" "${words[@]}" | tee "$log" || status=$?
{
    echo '### ringlab guard'
    echo '```'
    sed -n '/^head against base$/,$p' "$log"
    [[ $status != 2 ]] || echo 'It could not be measured; the log says why.'
    echo '```'
} >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
if [[ $status == 3 && $CANNOT_TELL == pass ]]; then
    echo '::warning title=ringlab guard::cannot tell whether the server has become slower'
    exit 0
fi
exit "$status"
