// Echo, HTTP and discard servers on Go's net, with a goroutine for each connection. Measured by ringlab.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	backlog     = 1024
	bufferBytes = 65536
)

var (
	answer       = []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!")
	endOfRequest = []byte("\r\n\r\n")
)

// listen makes a listener with the backlog of every target, where Go's own would be the kernel's maximum.
// Go sets TCP_NODELAY on what it accepts.
func listen(host string, port int) (net.Listener, error) {
	listener, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", host, port))
	if err != nil {
		return nil, err
	}
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		return nil, err
	}
	var relisten error
	if err := raw.Control(func(descriptor uintptr) { relisten = syscall.Listen(int(descriptor), backlog) }); err != nil {
		return nil, err
	}
	return listener, relisten
}

// serve accepts for ever. A connection that fails is over, and nobody else's business.
func serve(listener net.Listener, converse func(net.Conn)) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go converse(connection)
	}
}

// echo sends back what it receives. Not by io.Copy, which would splice within the kernel: every target reads and writes.
func echo(connection net.Conn) {
	defer connection.Close()
	buffer := make([]byte, bufferBytes)
	for {
		count, err := connection.Read(buffer)
		if err != nil {
			return
		}
		if _, err := connection.Write(buffer[:count]); err != nil {
			return
		}
	}
}

// discard throws away what it receives, and answers the end with how much that was.
func discard(connection net.Conn) {
	defer connection.Close()
	buffer := make([]byte, bufferBytes)
	received := 0
	for {
		count, err := connection.Read(buffer)
		received += count
		if err == io.EOF {
			fmt.Fprintf(connection, "%d\n", received)
		}
		if err != nil {
			return
		}
	}
}

// hello answers each request with the same bytes, and looks at nothing but where a request ends.
func hello(connection net.Conn) {
	defer connection.Close()
	buffer := make([]byte, bufferBytes)
	begun := 0 // Bytes at the start of the buffer that may be the first of an end.
	for {
		count, err := connection.Read(buffer[begun:])
		if err != nil {
			return
		}
		data := buffer[:begun+count]
		if requests := bytes.Count(data, endOfRequest); requests > 0 {
			if _, err := connection.Write(bytes.Repeat(answer, requests)); err != nil {
				return
			}
			data = data[bytes.LastIndex(data, endOfRequest)+len(endOfRequest):]
		}
		if excess := len(data) - (len(endOfRequest) - 1); excess > 0 {
			data = data[excess:]
		}
		begun = copy(buffer, data)
	}
}

// serveNetHTTP serves the same 13 bytes by Go's own HTTP server.
func serveNetHTTP(listener net.Listener) error {
	http.HandleFunc("/", func(writer http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/" {
			http.NotFound(writer, request)
			return
		}
		writer.Header().Set("Content-Type", "text/plain")
		writer.Write([]byte("Hello, World!")) // An error means that the client has gone.
	})
	return http.Serve(listener, nil)
}

// bindOnce is one operation: bind and listen on a port of the kernel's choice, and close; in mode accept, with one connection.
func bindOnce(mode string) error {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	if mode != "accept" {
		return nil
	}
	client, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		return err
	}
	defer client.Close()
	connection, err := listener.Accept()
	if err != nil {
		return err
	}
	defer connection.Close()
	// With a reset no TIME_WAIT is left behind, of which thousands would slow down every later bind.
	return client.(*net.TCPConn).SetLinger(0)
}

// timeBinding does count operations, shared among goroutines, and prints how long they took.
func timeBinding(mode string, count, concurrent int) error {
	if mode == "bind" {
		return fmt.Errorf("Go's net cannot bind without listening: use --mode listen or accept")
	}
	each := (count + concurrent - 1) / concurrent
	failed := make(chan error, concurrent)
	var waiting sync.WaitGroup
	begin := time.Now()
	for range make([]struct{}, concurrent) {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			for range make([]struct{}, each) {
				if err := bindOnce(mode); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	waiting.Wait()
	taken := time.Since(begin)
	if len(failed) > 0 {
		return <-failed
	}
	fmt.Printf("{\"operations\": %d, \"ns\": %d}\n", each*concurrent, taken.Nanoseconds())
	return nil
}

func run(command string, arguments []string) error {
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	host := flags.String("host", "127.0.0.1", "the address to listen on")
	port := flags.Int("port", 0, "the port to listen on; 0 lets the kernel choose")
	workers := flags.Int("workers", 1, "how many threads run goroutines at once")
	parser := flags.String("parser", "canned", "of http: canned, or real for net/http")
	mode := flags.String("mode", "listen", "of bind: listen or accept")
	count := flags.Int("count", 10000, "of bind: how many operations")
	concurrent := flags.Int("concurrent", 1, "of bind: how many goroutines share them")
	flags.Parse(arguments)
	runtime.GOMAXPROCS(*workers)
	if command == "bind" {
		return timeBinding(*mode, *count, *concurrent)
	}
	listener, err := listen(*host, *port)
	if err != nil {
		return err
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		os.Exit(0)
	}()
	fmt.Printf("listening on %s\n", listener.Addr())
	switch {
	case command == "echo":
		return serve(listener, echo)
	case command == "discard":
		return serve(listener, discard)
	case *parser == "real":
		return serveNetHTTP(listener)
	default:
		return serve(listener, hello)
	}
}

func main() {
	if len(os.Args) < 2 || !strings.Contains(" echo http discard bind ", " "+os.Args[1]+" ") {
		log.Fatal("usage: server echo|http|discard|bind [options]; -help explains them")
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}
