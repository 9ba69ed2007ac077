// Echo, HTTP and discard servers on Node.js's net and http. Measured by ringlab.
'use strict';

const http = require('node:http');
const net = require('node:net');
const { parseArgs } = require('node:util');

const HOST = '127.0.0.1';
const BACKLOG = 1024;
const BODY = 'Hello, World!';
const ANSWER = Buffer.from(`HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\n${BODY}`);
const END_OF_REQUEST = Buffer.from('\r\n\r\n');

function fail(error) {
  console.error(error.message);
  process.exit(1);
}

// Sends back what it receives. `pipe` stops reading while the peer doesn't, and ends the answer when the request ends.
function echo(socket) {
  socket.on('error', () => {}); // The peer has gone; so does its connection.
  socket.pipe(socket);
}

// Throws away what it receives, and answers the end with how much that was.
function discard(socket) {
  let received = 0;
  socket.on('error', () => {});
  socket.on('data', (data) => { received += data.length; });
  socket.on('end', () => socket.end(`${received}\n`));
}

// Answers each request with the same bytes, and looks at nothing but where a request ends.
function hello(socket) {
  let rest = Buffer.alloc(0);
  socket.on('error', () => {});
  socket.on('data', (received) => {
    const data = rest.length ? Buffer.concat([rest, received]) : received;
    let requests = 0;
    let begin = 0;
    for (let end; (end = data.indexOf(END_OF_REQUEST, begin)) !== -1; begin = end + END_OF_REQUEST.length) requests += 1;
    rest = data.subarray(begin);
    if (requests === 1) socket.write(ANSWER);
    else if (requests > 1) socket.write(Buffer.concat(Array(requests).fill(ANSWER)));
  });
}

function serve(server, host, port) {
  server.on('error', fail);
  process.on('SIGTERM', () => process.exit(0));
  server.listen({ host, port, backlog: BACKLOG }, () => console.log(`listening on ${host}:${server.address().port}`));
}

// The same 13 bytes from Node.js's own HTTP server.
function answerParsed(request, response) {
  const found = request.url === '/';
  const body = found ? BODY : 'Not Found';
  response.writeHead(found ? 200 : 404, { 'Content-Type': 'text/plain', 'Content-Length': body.length });
  response.end(body);
}

// One operation: bind and listen on a port of the kernel's choice, and close; in mode accept, with one connection.
function bindOnce(mode) {
  return new Promise((resolve, reject) => {
    let client;
    const server = net.createServer((accepted) => {
      accepted.on('error', () => {}); // It ends in the reset below.
      // With a reset no TIME_WAIT is left behind, of which thousands would slow down every later bind.
      client.resetAndDestroy();
      server.close(() => resolve()); // Calls back once the accepted connection has ended, too.
    });
    server.on('error', reject);
    server.listen({ host: HOST, port: 0, backlog: BACKLOG }, () => {
      if (mode !== 'accept') {
        server.close(() => resolve());
        return;
      }
      client = net.connect(server.address().port, HOST);
      client.on('error', reject);
    });
  });
}

async function bindMany(mode, count) {
  for (let done = 0; done < count; done += 1) await bindOnce(mode);
}

async function timeBinding(mode, count, concurrent) {
  if (mode === 'bind') throw new Error("Node.js's net cannot bind without listening: use --mode listen or accept");
  const each = Math.ceil(count / concurrent);
  await bindOnce(mode);
  const begin = process.hrtime.bigint();
  await Promise.all(Array.from({ length: concurrent }, () => bindMany(mode, each)));
  const ns = Number(process.hrtime.bigint() - begin);
  console.log(JSON.stringify({ operations: each * concurrent, ns }));
}

function main() {
  const { values, positionals: [command] } = parseArgs({
    allowPositionals: true,
    options: {
      host: { type: 'string', default: HOST },
      port: { type: 'string', default: '0' },
      parser: { type: 'string', default: 'canned' }, // Of http: canned, or real for Node.js's http.
      mode: { type: 'string', default: 'listen' },
      count: { type: 'string', default: '1000' },
      concurrent: { type: 'string', default: '1' },
    },
  });
  const listening = { noDelay: true, allowHalfOpen: true };
  const host = values.host;
  const port = Number(values.port);
  if (command === 'echo') serve(net.createServer(listening, echo), host, port);
  else if (command === 'discard') serve(net.createServer(listening, discard), host, port);
  // By itself it would close connections that rest for five seconds.
  else if (command === 'http' && values.parser === 'real') serve(http.createServer({ noDelay: true, keepAliveTimeout: 0 }, answerParsed), host, port);
  else if (command === 'http') serve(net.createServer({ noDelay: true }, hello), host, port);
  else if (command === 'bind') timeBinding(values.mode, Number(values.count), Number(values.concurrent)).catch(fail);
  else fail(new Error('usage: server.js echo|http|discard|bind [--host ADDRESS] [--port P] [--parser canned|real] [--mode listen|accept] [--count N] [--concurrent N]'));
}

main();
