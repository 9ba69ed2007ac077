(* An echo server on Atacama, with a process of Riot for each connection. Measured by ringlab.

     server echo [--host ADDRESS] --port P [--workers N] *)

open Riot

module Echo = struct
  open Atacama.Handler
  include Atacama.Handler.Default

  type state = unit
  type error = [ `none ]

  let pp_err formatter `none = Format.fprintf formatter "none"

  let handle_data data connection () =
    match Atacama.Connection.send connection data with
    | Ok () -> Continue ()
    | Error _ -> Close ()
end

let usage () =
  prerr_endline "usage: server echo [--host ADDRESS] --port P [--workers N]";
  Stdlib.exit 2

let fail text =
  prerr_endline text;
  Stdlib.exit 1

(* Atacama takes no address: it listens on all that the machine has. And it does not say why it fails. So both are tried here. *)
let check_place host port =
  match Unix.inet_addr_of_string host with
  | address when not (Unix.is_inet6_addr address) -> (
      let probe = Unix.(socket PF_INET SOCK_STREAM 0) in
      try
        Unix.(setsockopt probe SO_REUSEADDR true);
        Unix.bind probe (ADDR_INET (address, port));
        Unix.close probe
      with Unix.Unix_error (error, _, _) ->
        fail (Printf.sprintf "cannot listen on %s:%d: %s" host port (Unix.error_message error)))
  | _ | (exception Failure _) -> fail ("--host " ^ host ^ " is not an IPv4 address")

let rec options host port workers = function
  | "--host" :: value :: rest -> options value port workers rest
  | "--port" :: value :: rest -> options host (int_of_string value) workers rest
  | "--workers" :: value :: rest -> options host port (int_of_string value) rest
  | [] when port > 0 && workers > 0 -> (host, port, workers)
  | _ -> usage ()

let () =
  match Array.to_list Sys.argv with
  | _ :: "echo" :: words ->
      let host, port, workers = options "127.0.0.1" 0 1 words in
      check_place host port;
      Riot.run ~workers @@ fun () ->
      (match Atacama.start_link ~port ~buffer_size:65536 (module Echo) () with
      | Ok server -> wait_pids [ server ]
      | Error _ ->
          prerr_endline "cannot listen";
          shutdown ~status:1 ())
  | _ -> usage ()
