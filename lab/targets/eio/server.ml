(* Echo, HTTP and discard servers on Eio, with a fiber for each connection. Measured by ringlab. *)

open Eio.Std

let backlog = 1024
let buffer_bytes = 65536
let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!"
let end_of_request = "\r\n\r\n"
let loopback = `Tcp (Eio.Net.Ipaddr.V4.loopback, 0)

(* A connection ends in End_of_file, or in an error that is nobody else's business. *)

let echo flow _ =
  Eio.Net.(setsockopt flow Sockopt.TCP_NODELAY true);
  let buffer = Cstruct.create buffer_bytes in
  let rec go () =
    let count = Eio.Flow.single_read flow buffer in
    Eio.Flow.write flow [ Cstruct.sub buffer 0 count ];
    go ()
  in
  try go () with End_of_file -> ()

(* Throws away what it receives, and answers the end with how much that was. *)
let discard flow _ =
  Eio.Net.(setsockopt flow Sockopt.TCP_NODELAY true);
  let buffer = Cstruct.create buffer_bytes in
  let rec go received =
    match Eio.Flow.single_read flow buffer with
    | count -> go (received + count)
    | exception End_of_file -> Eio.Flow.copy_string (Printf.sprintf "%d\n" received) flow
  in
  go 0

(* How many requests end in these bytes, when [matched] bytes of an end have been seen; and how many have been then. *)
let rec count_requests data index matched requests =
  if index = Cstruct.length data then (requests, matched)
  else
    let byte = Cstruct.get_char data index in
    let matched = if byte = end_of_request.[matched] then matched + 1 else if byte = '\r' then 1 else 0 in
    if matched = String.length end_of_request then count_requests data (index + 1) 0 (requests + 1)
    else count_requests data (index + 1) matched requests

(* Answers each request with the same bytes, and looks at nothing but where a request ends. *)
let hello flow _ =
  Eio.Net.(setsockopt flow Sockopt.TCP_NODELAY true);
  let buffer = Cstruct.create buffer_bytes in
  let answer = Cstruct.of_string answer in
  let rec go matched =
    let count = Eio.Flow.single_read flow buffer in
    let requests, matched = count_requests (Cstruct.sub buffer 0 count) 0 matched 0 in
    if requests > 0 then Eio.Flow.write flow (List.init requests (fun _ -> answer));
    go matched
  in
  try go 0 with End_of_file -> ()

(* Eio makes addresses of bytes, and has no function that reads one. *)
let parse host =
  match Unix.inet_addr_of_string host with
  | address when not (Unix.is_inet6_addr address) -> Eio_unix.Net.Ipaddr.of_unix address
  | _ | (exception Failure _) -> failwith ("--host " ^ host ^ " is not an IPv4 address")

let serve env ~host ~port ~workers converse =
  Switch.run @@ fun sw ->
  let listener = Eio.Net.listen ~reuse_addr:true ~backlog ~sw (Eio.Stdenv.net env) (`Tcp (parse host, port)) in
  Sys.set_signal Sys.sigterm (Signal_handle (fun _ -> Unix._exit 0));
  (match Eio.Net.listening_addr listener with
  | `Tcp (_, port) -> Printf.printf "listening on %s:%d\n%!" host port
  | `Unix _ -> assert false);
  Eio.Net.run_server listener converse ~on_error:ignore
    ~additional_domains:(Eio.Stdenv.domain_mgr env, workers - 1)

(* One operation: bind and listen on a port of the kernel's choice, and close; in mode accept, with one connection. *)
let bind_once net mode =
  Switch.run @@ fun sw ->
  let listener = Eio.Net.listen ~backlog ~sw net loopback in
  if mode = "accept" then begin
    let client = Eio.Net.connect ~sw net (Eio.Net.listening_addr listener) in
    let accepted, _ = Eio.Net.accept ~sw listener in
    (* With a reset no TIME_WAIT is left behind, of which thousands would slow down every later bind. *)
    Eio.Net.(setsockopt client Sockopt.SO_LINGER (Some 0));
    Eio.Resource.close client;
    Eio.Resource.close accepted
  end

let time_binding env ~mode ~count ~concurrent =
  if mode <> "listen" && mode <> "accept" then failwith "Eio cannot bind without listening: use --mode listen or accept";
  let net = Eio.Stdenv.net env in
  let each = (count + concurrent - 1) / concurrent in
  let clock = Eio.Stdenv.mono_clock env in
  let start = Eio.Time.Mono.now clock in
  Fiber.all
    (List.init concurrent (fun _ () ->
         for _ = 1 to each do
           bind_once net mode
         done));
  let taken = Mtime.Span.to_uint64_ns (Mtime.span start (Eio.Time.Mono.now clock)) in
  Printf.printf "{\"operations\": %d, \"ns\": %Lu}\n%!" (each * concurrent) taken

let () =
  let host = ref "127.0.0.1" and port = ref 0 and workers = ref 1 and mode = ref "listen" and count = ref 1000 and concurrent = ref 1 in
  let command = ref "" in
  let options =
    [
      ("--host", Arg.Set_string host, "the IPv4 address to listen on");
      ("--port", Arg.Set_int port, "the port to listen on; 0 lets the kernel choose");
      ("--workers", Arg.Set_int workers, "how many domains serve");
      ("--mode", Arg.Set_string mode, "of bind: listen or accept");
      ("--count", Arg.Set_int count, "of bind: how many operations");
      ("--concurrent", Arg.Set_int concurrent, "of bind: how many fibers share them");
    ]
  in
  let usage = "server echo|http|discard|bind [options]" in
  Arg.parse options (fun word -> command := word) usage;
  try
    Eio_main.run @@ fun env ->
    match !command with
    | "echo" -> serve env ~host:!host ~port:!port ~workers:!workers echo
    | "http" -> serve env ~host:!host ~port:!port ~workers:!workers hello
    | "discard" -> serve env ~host:!host ~port:!port ~workers:!workers discard
    | "bind" -> time_binding env ~mode:!mode ~count:!count ~concurrent:!concurrent
    | _ -> failwith ("usage: " ^ usage)
  with
  | Failure text ->
      prerr_endline text;
      exit 1
  | Eio.Io _ as error ->
      Printf.eprintf "cannot serve: %s\n" (Printexc.to_string error);
      exit 1
