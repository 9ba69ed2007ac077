%% Echo, HTTP and discard servers on ranch, with a process for each connection. Measured by ringlab.
-module(server).
-behaviour(ranch_protocol).
-export([start/0, start_link/3, init/3]).

-define(BACKLOG, 1024).
-define(BUFFER_BYTES, 65536).
-define(ANSWER, <<"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!">>).
-define(END_OF_REQUEST, <<"\r\n\r\n">>).
-define(DEFAULTS, #{"--host" => "127.0.0.1", "--port" => "0", "--mode" => "listen", "--count" => "1000", "--concurrent" => "1"}).

start() ->
    [Command | Words] = init:get_plain_arguments() ++ [""],
    try options(lists:droplast(Words), ?DEFAULTS) of
        Options when Command =:= "echo"; Command =:= "http"; Command =:= "discard" ->
            serve(list_to_atom(Command), maps:get("--host", Options), number("--port", Options));
        Options when Command =:= "bind" ->
            time_binding(maps:get("--mode", Options), number("--count", Options), number("--concurrent", Options));
        _ -> fail("usage: server echo|http|discard|bind [--host ADDRESS] [--port P] [--mode listen|accept] [--count N] [--concurrent N]")
    catch
        error:Reason -> fail(io_lib:format("~p", [Reason]))
    end.

options([Name, Value | Words], Options) when is_map_key(Name, Options) -> options(Words, Options#{Name := Value});
options([], Options) -> Options.

number(Name, Options) -> list_to_integer(maps:get(Name, Options)).

fail(Text) ->
    io:put_chars(standard_error, [Text, $\n]),
    halt(1).

%% --- serving ---

serve(Kind, Host, Port) ->
    Address = case inet:parse_ipv4strict_address(Host) of
        {ok, Parsed} -> Parsed;
        {error, _} -> fail(io_lib:format("--host ~ts is not an IPv4 address", [Host]))
    end,
    {ok, _} = application:ensure_all_started(ranch),
    Listening = #{
        max_connections => infinity,
        socket_opts => [
            {ip, Address}, {port, Port}, {backlog, ?BACKLOG}, {nodelay, true}, {reuseaddr, true},
            {buffer, ?BUFFER_BYTES},
            %% Otherwise the end of what a client sends would close the connection before everything is answered.
            {exit_on_close, false}
        ]
    },
    logger:set_primary_config(level, none),
    case ranch:start_listener(?MODULE, ranch_tcp, Listening, ?MODULE, Kind) of
        {ok, _} -> io:format("listening on ~s:~b~n", [Host, ranch:get_port(?MODULE)]);
        {error, Reason} -> fail(io_lib:format("cannot listen on ~s:~b: ~ts", [Host, Port, explain(Reason)]))
    end.

%% In one line, as the lab shows only the last one: ranch wraps the cause in the reports of its supervisors.
explain({{shutdown, {failed_to_start_child, ranch_acceptors_sup, {listen_error, _, Cause}}}, _}) -> inet:format_error(Cause);
explain(Reason) -> io_lib:format("~0p", [Reason]).

start_link(Listener, Transport, Kind) ->
    {ok, spawn_link(?MODULE, init, [Listener, Transport, Kind])}.

init(Listener, Transport, Kind) ->
    {ok, Socket} = ranch:handshake(Listener),
    case Kind of
        echo -> echo(Socket, Transport);
        http -> hello(Socket, Transport, <<>>);
        discard -> discard(Socket, Transport, 0)
    end,
    Transport:close(Socket).

%% Sends back what it receives, until the connection ends in whatever way.
echo(Socket, Transport) ->
    case Transport:recv(Socket, 0, infinity) of
        {ok, Data} ->
            case Transport:send(Socket, Data) of
                ok -> echo(Socket, Transport);
                {error, _} -> ended
            end;
        {error, _} -> ended
    end.

%% Throws away what it receives, and answers the end with how much that was.
discard(Socket, Transport, Received) ->
    case Transport:recv(Socket, 0, infinity) of
        {ok, Data} -> discard(Socket, Transport, Received + byte_size(Data));
        {error, closed} -> Transport:send(Socket, [integer_to_binary(Received), $\n]);
        {error, _} -> ended
    end.

%% Answers each request with the same bytes, and looks at nothing but where a request ends.
hello(Socket, Transport, Rest) ->
    case Transport:recv(Socket, 0, infinity) of
        {ok, Data} ->
            [Last | Requests] = lists:reverse(binary:split(<<Rest/binary, Data/binary>>, ?END_OF_REQUEST, [global])),
            case Transport:send(Socket, [?ANSWER || _ <- Requests]) of
                ok -> hello(Socket, Transport, Last);
                {error, _} -> ended
            end;
        {error, _} -> ended
    end.

%% --- bind: one operation is to listen on a port of the kernel's choice and to close; or that with one connection ---

time_binding(Mode, Count, Concurrent) when Mode =:= "listen"; Mode =:= "accept" ->
    Each = (Count + Concurrent - 1) div Concurrent,
    bind_once(Mode),
    Begin = erlang:monotonic_time(nanosecond),
    Workers = [spawn_monitor(fun() -> [bind_once(Mode) || _ <- lists:seq(1, Each)] end) || _ <- lists:seq(1, Concurrent)],
    [receive {'DOWN', Monitor, process, Worker, normal} -> ok;
             {'DOWN', Monitor, process, Worker, Reason} -> fail(io_lib:format("~p", [Reason])) end
     || {Worker, Monitor} <- Workers],
    Taken = erlang:monotonic_time(nanosecond) - Begin,
    io:format("{\"operations\": ~b, \"ns\": ~b}~n", [Each * Concurrent, Taken]),
    halt(0);
time_binding(_, _, _) ->
    fail("gen_tcp cannot bind without listening: use --mode listen or accept").

bind_once(Mode) ->
    {ok, Listener} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {backlog, ?BACKLOG}, {active, false}]),
    case Mode of
        "listen" -> ok;
        "accept" ->
            {ok, {Address, Port}} = inet:sockname(Listener),
            {ok, Client} = gen_tcp:connect(Address, Port, [{active, false}]),
            {ok, Accepted} = gen_tcp:accept(Listener),
            %% With a reset no TIME_WAIT is left behind, of which thousands would slow down every later bind.
            ok = inet:setopts(Client, [{linger, {true, 0}}]),
            ok = gen_tcp:close(Client),
            ok = gen_tcp:close(Accepted)
    end,
    ok = gen_tcp:close(Listener).
