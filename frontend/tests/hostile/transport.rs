//! A TCP connection that reads at a pace of its own, and counts what it carries.

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

/// As little as the kernel allows: what is not read stays with the sender.
const RECEIVE_BUFFER: u32 = 4096;

/// How a client reads its socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    Full,
    /// So many bytes, and then nothing any more.
    Until(u64),
    /// So many bytes, and then one each second.
    Trickle(u64),
}

/// A connection.
struct Paced {
    stream: TcpStream,
    pace: Pace,
    carried: Arc<AtomicU64>,
    read: u64,
    pause: Pin<Box<Sleep>>,
}

/// Connects; the number counts the bytes of both directions.
pub(crate) async fn channel(endpoint: Endpoint, address: SocketAddr, pace: Pace) -> (Channel, Arc<AtomicU64>) {
    let carried = Arc::new(AtomicU64::new(0));
    let counter = carried.clone();
    let connect = move |_| {
        let carried = counter.clone();
        async move {
            let socket = TcpSocket::new_v4()?;
            if !matches!(pace, Pace::Full) {
                socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
            }
            let stream = socket.connect(address).await?;
            let pause = Box::pin(sleep_until(Instant::now()));
            Ok::<_, std::io::Error>(TokioIo::new(Paced { stream, pace, carried, read: 0, pause }))
        }
    };
    let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap();
    (channel, carried)
}

impl Paced {
    fn read_some(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = (buffer.filled().len() - before) as u64;
        self.read += bytes;
        self.carried.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        match this.pace {
            Pace::Until(most) if this.read >= most => Poll::Pending,
            Pace::Trickle(most) if this.read >= most => {
                ready!(this.pause.as_mut().poll(context));
                let mut one = [0];
                let mut small = ReadBuf::new(&mut one);
                ready!(this.read_some(context, &mut small))?;
                buffer.put_slice(small.filled());
                this.pause.as_mut().reset(Instant::now() + Duration::from_secs(1));
                Poll::Ready(Ok(()))
            }
            Pace::Full | Pace::Until(_) | Pace::Trickle(_) => this.read_some(context, buffer),
        }
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.carried.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
