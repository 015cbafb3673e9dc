//! A connection that limits how fast it reads, and counts its bytes.

use std::{
    future::ready,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{self, Context, Poll},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};
use tonic::transport::{Channel, Endpoint, Error};

/// How a client reads its socket.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not all tests use all of them")]
pub(crate) enum ReadRate {
    Full,
    /// This many bytes, then one per second.
    Trickle(u64),
}

struct ThrottledStream<S> {
    stream: S,
    rate: ReadRate,
    bytes_transferred: Arc<AtomicU64>,
    read: u64,
    pause: Pin<Box<Sleep>>,
}

/// Makes calls over an open connection. The counter covers both directions.
pub(crate) async fn channel<S>(
    endpoint: Endpoint,
    stream: S,
    rate: ReadRate,
) -> Result<(Channel, Arc<AtomicU64>), Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let bytes_transferred = Arc::new(AtomicU64::new(0));
    let pause = Box::pin(sleep_until(Instant::now()));
    let stream = ThrottledStream { stream, rate, bytes_transferred: bytes_transferred.clone(), read: 0, pause };
    let mut stream = Some(TokioIo::new(stream));
    let connect = move |_| ready(stream.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)));
    let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await?;
    Ok((channel, bytes_transferred))
}

impl<S: AsyncRead + Unpin> ThrottledStream<S> {
    fn read_some(&mut self, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = (buffer.filled().len() - before) as u64;
        self.read += bytes;
        self.bytes_transferred.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ThrottledStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match this.rate {
            ReadRate::Trickle(most) if this.read >= most => {
                task::ready!(this.pause.as_mut().poll(context));
                let mut one = [0];
                let mut small = ReadBuf::new(&mut one);
                task::ready!(this.read_some(context, &mut small))?;
                buffer.put_slice(small.filled());
                this.pause.as_mut().reset(Instant::now() + Duration::from_secs(1));
                Poll::Ready(Ok(()))
            }
            ReadRate::Full | ReadRate::Trickle(_) => this.read_some(context, buffer),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ThrottledStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.bytes_transferred.fetch_add(written as u64, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
