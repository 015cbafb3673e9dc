//! A TCP connection that limits how fast it reads, and counts its bytes.

use std::{
    io::Result,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpSocket, TcpStream},
    time::{Instant, Sleep, sleep_until},
};
use tonic::transport::{Channel, Endpoint};

/// As small as the kernel allows, so that unread data stays with the sender.
const RECEIVE_BUFFER: u32 = 4096;

/// How a client reads its socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadRate {
    Full,
    /// This many bytes, then nothing.
    Until(u64),
    /// This many bytes, then one per second.
    Trickle(u64),
}

struct ThrottledStream {
    stream: TcpStream,
    rate: ReadRate,
    bytes_transferred: Arc<AtomicU64>,
    read: u64,
    pause: Pin<Box<Sleep>>,
}

/// Connects. The counter covers both directions.
pub(crate) async fn channel(endpoint: Endpoint, address: SocketAddr, rate: ReadRate) -> (Channel, Arc<AtomicU64>) {
    let bytes_transferred = Arc::new(AtomicU64::new(0));
    let counter = bytes_transferred.clone();
    let connect = move |_| {
        let bytes_transferred = counter.clone();
        async move {
            let socket = TcpSocket::new_v4()?;
            if !matches!(rate, ReadRate::Full) {
                socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
            }
            let stream = socket.connect(address).await?;
            let pause = Box::pin(sleep_until(Instant::now()));
            Ok::<_, std::io::Error>(TokioIo::new(ThrottledStream { stream, rate, bytes_transferred, read: 0, pause }))
        }
    };
    let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap();
    (channel, bytes_transferred)
}

impl ThrottledStream {
    fn read_some(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = (buffer.filled().len() - before) as u64;
        self.read += bytes;
        self.bytes_transferred.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for ThrottledStream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        match this.rate {
            ReadRate::Until(most) if this.read >= most => Poll::Pending,
            ReadRate::Trickle(most) if this.read >= most => {
                ready!(this.pause.as_mut().poll(context));
                let mut one = [0];
                let mut small = ReadBuf::new(&mut one);
                ready!(this.read_some(context, &mut small))?;
                buffer.put_slice(small.filled());
                this.pause.as_mut().reset(Instant::now() + Duration::from_secs(1));
                Poll::Ready(Ok(()))
            }
            ReadRate::Full | ReadRate::Until(_) | ReadRate::Trickle(_) => this.read_some(context, buffer),
        }
    }
}

impl AsyncWrite for ThrottledStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.bytes_transferred.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
