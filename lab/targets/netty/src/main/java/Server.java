import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoop;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.FixedRecvByteBufAllocator;
import io.netty.channel.IoHandlerFactory;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.epoll.EpollIoHandler;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.epoll.EpollSocketChannel;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.socket.ServerSocketChannel;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.channel.uring.IoUringIoHandler;
import io.netty.channel.uring.IoUringServerSocketChannel;
import io.netty.channel.uring.IoUringSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.util.CharsetUtil;
import io.netty.util.concurrent.Promise;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import sun.misc.Signal;

/** Echo and HTTP servers on Netty. Measured by ringlab. */
final class Server {
    private static final int BACKLOG = 1024;
    private static final int BUFFER_BYTES = 65536;
    private static final int WARM_UP_OPERATIONS = 500;
    private static final ByteBuf BODY = text("Hello, World!");
    private static final ByteBuf ANSWER =
            text("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!");
    private static final ByteBuf END_OF_REQUEST = text("\r\n\r\n");
    private static final InetSocketAddress ANYWHERE = new InetSocketAddress("127.0.0.1", 0);

    private static ByteBuf text(String text) {
        return Unpooled.unreleasableBuffer(Unpooled.directBuffer().writeBytes(text.getBytes(CharsetUtil.US_ASCII)));
    }

    /** What Netty drives sockets with. */
    private record Transport(
            IoHandlerFactory factory, Class<? extends ServerSocketChannel> listener, Class<? extends SocketChannel> socket) {
        static Transport named(String name) {
            return switch (name) {
                case "nio" -> new Transport(NioIoHandler.newFactory(), NioServerSocketChannel.class, NioSocketChannel.class);
                case "epoll" ->
                    new Transport(EpollIoHandler.newFactory(), EpollServerSocketChannel.class, EpollSocketChannel.class);
                case "io_uring" ->
                    new Transport(IoUringIoHandler.newFactory(), IoUringServerSocketChannel.class, IoUringSocketChannel.class);
                default -> throw new IllegalArgumentException("--transport is nio, epoll or io_uring");
            };
        }
    }

    /** Sends back what it receives; while the peer doesn't read, nothing more is read from it. */
    private static class Echo extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) throws Exception {
            context.write(message);
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext context) {
            context.channel().config().setAutoRead(context.channel().isWritable());
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof ChannelInputShutdownEvent) { // Everything is sent before the connection closes.
                context.writeAndFlush(Unpooled.EMPTY_BUFFER).addListener(ChannelFutureListener.CLOSE);
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable error) {
            context.close(); // The peer has gone; so does its connection.
        }
    }

    /** Answers each request with the same bytes, and looks at nothing but where a request ends. */
    private static final class Hello extends Echo {
        private ByteBuf rest = Unpooled.EMPTY_BUFFER;

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf data = (ByteBuf) message;
            if (rest.isReadable()) {
                data = Unpooled.wrappedBuffer(rest, data);
            }
            for (int end; (end = ByteBufUtil.indexOf(END_OF_REQUEST, data)) >= 0; ) {
                data.readerIndex(end + END_OF_REQUEST.readableBytes());
                context.write(ANSWER.duplicate());
            }
            rest = data.isReadable() ? Unpooled.copiedBuffer(data) : Unpooled.EMPTY_BUFFER;
            data.release();
        }
    }

    /** The same 13 bytes through Netty's HTTP codec. */
    private static final class ParsedHello extends SimpleChannelInboundHandler<FullHttpRequest> {
        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
            HttpResponseStatus status = request.decoderResult().isFailure()
                    ? HttpResponseStatus.BAD_REQUEST
                    : request.uri().equals("/") ? HttpResponseStatus.OK : HttpResponseStatus.NOT_FOUND;
            ByteBuf body = status == HttpResponseStatus.OK ? BODY.duplicate() : Unpooled.EMPTY_BUFFER;
            var response = new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, status, body);
            response.headers().set(HttpHeaderNames.CONTENT_TYPE, "text/plain");
            response.headers().set(HttpHeaderNames.CONTENT_LENGTH, body.readableBytes());
            ChannelFuture written = context.write(response);
            if (status == HttpResponseStatus.BAD_REQUEST || !HttpUtil.isKeepAlive(request)) {
                written.addListener(ChannelFutureListener.CLOSE);
            }
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable error) {
            context.close();
        }
    }

    private static void serve(Map<String, String> options, String command) throws Exception {
        Transport transport = Transport.named(options.get("--transport"));
        boolean parses = options.get("--parser").equals("real");
        EventLoopGroup group = new MultiThreadIoEventLoopGroup(Integer.parseInt(options.get("--workers")), transport.factory());
        Channel listener = new ServerBootstrap()
                .group(group)
                .channel(transport.listener())
                .option(ChannelOption.SO_BACKLOG, BACKLOG)
                .childOption(ChannelOption.TCP_NODELAY, true)
                .childOption(ChannelOption.ALLOW_HALF_CLOSURE, command.equals("echo"))
                .childOption(ChannelOption.RCVBUF_ALLOCATOR, new FixedRecvByteBufAllocator(BUFFER_BYTES))
                .childHandler(new ChannelInitializer<Channel>() {
                    @Override
                    protected void initChannel(Channel channel) {
                        if (command.equals("echo")) {
                            channel.pipeline().addLast(new Echo());
                        } else if (parses) {
                            channel.pipeline().addLast(new HttpServerCodec(), new HttpObjectAggregator(BUFFER_BYTES), new ParsedHello());
                        } else {
                            channel.pipeline().addLast(new Hello());
                        }
                    }
                })
                .bind(options.get("--host"), Integer.parseInt(options.get("--port")))
                .sync()
                .channel();
        Signal.handle(new Signal("TERM"), signal -> Runtime.getRuntime().halt(0));
        System.out.println("listening on " + options.get("--host") + ":" + ((InetSocketAddress) listener.localAddress()).getPort());
        listener.closeFuture().sync();
    }

    /** Operations one after the other: bind and listen on a port of the kernel's choice, and close; or with one connection. */
    private static final class Binding {
        final Transport transport;
        final EventLoop loop;
        final boolean accepts;
        final CountDownLatch done;
        int left;

        Binding(Transport transport, EventLoop loop, boolean accepts, CountDownLatch done, int left) {
            this.transport = transport;
            this.loop = loop;
            this.accepts = accepts;
            this.done = done;
            this.left = left;
        }

        void next() {
            if (left-- == 0) {
                done.countDown();
                return;
            }
            Promise<Channel> accepted = loop.newPromise();
            new ServerBootstrap()
                    .group(loop)
                    .channel(transport.listener())
                    .option(ChannelOption.SO_BACKLOG, BACKLOG)
                    .childHandler(new ChannelInboundHandlerAdapter() {
                        @Override
                        public void channelActive(ChannelHandlerContext context) {
                            accepted.setSuccess(context.channel());
                        }

                        @Override
                        public void exceptionCaught(ChannelHandlerContext context, Throwable error) {
                            context.close(); // By the client's reset.
                        }
                    })
                    .bind(ANYWHERE)
                    .addListener((ChannelFuture bound) -> {
                        Channel listener = succeeded(bound).channel();
                        if (accepts) {
                            connect(listener, accepted);
                        } else {
                            listener.close().addListener(closed -> next());
                        }
                    });
        }

        void connect(Channel listener, Promise<Channel> accepted) {
            new Bootstrap()
                    .group(loop)
                    .channel(transport.socket())
                    // With a reset no TIME_WAIT is left behind, of which thousands would slow down every later bind.
                    .option(ChannelOption.SO_LINGER, 0)
                    .handler(new ChannelInboundHandlerAdapter())
                    .connect(listener.localAddress())
                    .addListener((ChannelFuture connected) -> {
                        Channel client = succeeded(connected).channel();
                        accepted.addListener(peer -> client.close().addListener(first -> accepted.getNow()
                                .close()
                                .addListener(second -> listener.close().addListener(third -> next()))));
                    });
        }

        static ChannelFuture succeeded(ChannelFuture future) {
            if (!future.isSuccess()) {
                fail(future.cause());
            }
            return future;
        }
    }

    private static void timeBinding(Map<String, String> options) throws Exception {
        String mode = options.get("--mode");
        if (!mode.equals("listen") && !mode.equals("accept")) {
            throw new IllegalArgumentException("Netty cannot bind without listening: use --mode listen or accept");
        }
        int concurrent = Integer.parseInt(options.get("--concurrent"));
        int each = (Integer.parseInt(options.get("--count")) + concurrent - 1) / concurrent;
        Transport transport = Transport.named(options.get("--transport"));
        EventLoopGroup group = new MultiThreadIoEventLoopGroup(1, transport.factory());
        // The first operations load classes, which takes as long as hundreds of the others.
        bind(transport, group, mode.equals("accept"), concurrent, WARM_UP_OPERATIONS / concurrent + 1);
        long begin = System.nanoTime();
        bind(transport, group, mode.equals("accept"), concurrent, each);
        System.out.printf("{\"operations\": %d, \"ns\": %d}%n", each * concurrent, System.nanoTime() - begin);
        Runtime.getRuntime().halt(0);
    }

    private static void bind(Transport transport, EventLoopGroup group, boolean accepts, int concurrent, int each)
            throws InterruptedException {
        CountDownLatch done = new CountDownLatch(concurrent);
        for (int chain = 0; chain < concurrent; ++chain) {
            Binding binding = new Binding(transport, group.next(), accepts, done, each);
            binding.loop.execute(binding::next);
        }
        done.await();
    }

    private static void fail(Throwable error) {
        System.err.println(error.getMessage());
        Runtime.getRuntime().halt(1);
    }

    public static void main(String[] words) {
        Map<String, String> options = new HashMap<>(Map.of(
                "--host", "127.0.0.1", "--port", "0", "--workers", "1", "--transport", "epoll", "--parser", "canned",
                "--mode", "listen", "--count", "1000", "--concurrent", "1"));
        try {
            for (int index = 1; index < words.length; index += 2) {
                if (!options.containsKey(words[index]) || index + 1 == words.length) {
                    throw new IllegalArgumentException("what is " + words[index] + "?");
                }
                options.put(words[index], words[index + 1]);
            }
            switch (words.length > 0 ? words[0] : "") {
                case "echo", "http" -> serve(options, words[0]);
                case "bind" -> timeBinding(options);
                default -> throw new IllegalArgumentException("usage: Server echo|http|bind [--host H] [--port P] [--workers N]"
                        + " [--transport T] [--parser P] [--mode M] [--count N] [--concurrent N]");
            }
        } catch (Exception error) {
            fail(error);
        }
    }
}
