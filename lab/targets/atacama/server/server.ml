(* An echo server on Atacama, with a process of Riot for each connection. Measured by ringlab.

     server echo --port P [--workers N] *)

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
  prerr_endline "usage: server echo --port P [--workers N]";
  exit 2

let rec options port workers = function
  | "--port" :: value :: rest -> options (int_of_string value) workers rest
  | "--workers" :: value :: rest -> options port (int_of_string value) rest
  | [] when port > 0 && workers > 0 -> (port, workers)
  | _ -> usage ()

let () =
  match Array.to_list Sys.argv with
  | _ :: "echo" :: words ->
      let port, workers = options 0 1 words in
      Riot.run ~workers @@ fun () ->
      (match Atacama.start_link ~port ~buffer_size:65536 (module Echo) () with
      | Ok _ -> ()
      | Error _ ->
          prerr_endline "cannot listen";
          shutdown ~status:1 ());
      wait_children ()
  | _ -> usage ()
