defmodule Server do
  @moduledoc "Echo and HTTP servers on Thousand Island, with a process for each connection. Measured by ringlab."

  defmodule Echo do
    @moduledoc "Sends back what it receives."
    use ThousandIsland.Handler

    @impl ThousandIsland.Handler
    def handle_data(data, socket, state) do
      case ThousandIsland.Socket.send(socket, data) do
        :ok -> {:continue, state}
        {:error, _} -> {:close, state}
      end
    end
  end

  defmodule Hello do
    @moduledoc "Answers each request with the same bytes, and looks at nothing but where a request ends."
    use ThousandIsland.Handler

    @answer "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!"

    @impl ThousandIsland.Handler
    def handle_data(data, socket, rest) do
      [rest | requests] = (rest <> data) |> :binary.split("\r\n\r\n", [:global]) |> Enum.reverse()

      case ThousandIsland.Socket.send(socket, for(_ <- requests, do: @answer)) do
        :ok -> {:continue, rest}
        {:error, _} -> {:close, rest}
      end
    end
  end

  def main([kind | options]) when kind in ["echo", "http"] do
    {options, [], []} = OptionParser.parse(options, strict: [host: :string, port: :integer])
    host = Keyword.get(options, :host, "127.0.0.1")

    address =
      case :inet.parse_ipv4strict_address(to_charlist(host)) do
        {:ok, address} -> address
        {:error, _} -> fail("--host #{host} is not an IPv4 address")
      end

    Logger.configure(level: :none)
    {:ok, _} = Application.ensure_all_started(:thousand_island)
    # A failure to listen arrives as a message, not as the end of this process.
    Process.flag(:trap_exit, true)

    started =
      ThousandIsland.start_link(
        port: Keyword.get(options, :port, 0),
        handler_module: if(kind == "echo", do: Echo, else: Hello),
        handler_options: "",
        read_timeout: :infinity,
        transport_options: [
          ip: address,
          backlog: 1024,
          nodelay: true,
          buffer: 65_536,
          # Otherwise the end of what a client sends would close the connection before everything is answered.
          exit_on_close: false
        ]
      )

    case started do
      {:ok, server} ->
        {:ok, {_, port}} = ThousandIsland.listener_info(server)
        IO.puts("listening on #{host}:#{port}")
        Process.sleep(:infinity)

      {:error, reason} ->
        fail("cannot listen on #{host}: #{inspect(reason)}")
    end
  end

  def main(_) do
    IO.puts(:stderr, "usage: server echo|http [--host ADDRESS] [--port P]")
    System.halt(2)
  end

  defp fail(text) do
    IO.puts(:stderr, text)
    System.halt(1)
  end
end
