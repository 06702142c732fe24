//! A client's connection with a side entrance for informational responses (103 Early Hints, 102 Processing), which hyper's server
//! cannot send.
//!
//! They go out between two messages of the server's: its buffer is empty when it flushes, and what is queued here follows at once, or in
//! front of what it writes next.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug, Default)]
struct Queue {
    waiting: BytesMut,
    /// Nothing that the server has written is still with it.
    between: bool,
    waker: Option<Waker>,
}

/// The connection.
#[derive(Debug)]
pub struct Door<S> {
    stream: S,
    queue: Arc<Mutex<Queue>>,
}

/// What queues informational responses.
#[derive(Clone, Debug)]
pub struct Bell {
    queue: Arc<Mutex<Queue>>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S> Door<S> {
    /// The connection `stream`, and what queues for it.
    pub fn new(stream: S) -> (Door<S>, Bell) {
        let queue = Arc::new(Mutex::new(Queue {
            between: true,
            ..Queue::default()
        }));
        let bell = Bell {
            queue: Arc::clone(&queue),
        };
        (Door { stream, queue }, bell)
    }
}

impl Bell {
    /// Queues a whole message.
    pub fn push(&self, message: &[u8]) {
        lock(&self.queue).waiting.extend_from_slice(message);
    }

    /// Until everything queued has gone out. Must be waited for on the task that drives the connection.
    pub async fn passed(&self) {
        poll_fn(|cx| {
            let mut queue = lock(&self.queue);
            if queue.waiting.is_empty() {
                return Poll::Ready(());
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl<S: AsyncWrite + Unpin> Door<S> {
    /// Writes what is queued, if this is between two messages.
    fn poll_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut queue = lock(&self.queue);
        if !queue.between || queue.waiting.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while !queue.waiting.is_empty() {
            let n = ready!(Pin::new(&mut self.stream).poll_write(cx, &queue.waiting))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            queue.waiting.advance(n);
        }
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
        Poll::Ready(Ok(()))
    }

    fn begin(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_queue(cx))?;
        lock(&self.queue).between = false;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Door<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Door<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.begin(cx))?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.begin(cx))?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        lock(&self.queue).between = true;
        ready!(self.poll_queue(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_is_queued_goes_out_between_messages_and_never_inside_of_one() {
        // Room for four bytes: a message of eight is half-written until somebody reads.
        let (near, mut far) = tokio::io::duplex(4);
        let (mut door, bell) = Door::new(near);
        let writing = tokio::spawn(async move {
            door.write_all(b"message1").await.unwrap();
            bell.push(b"<103>");
            door.write_all(b"-rest").await.unwrap();
            door.flush().await.unwrap();
            bell.passed().await;
            bell.push(b"<102>");
            door.write_all(b"message2").await.unwrap();
            door.flush().await.unwrap();
        });
        let mut got = String::new();
        far.read_to_string(&mut got).await.unwrap();
        writing.await.unwrap();
        assert_eq!(got, "message1-rest<103><102>message2");
    }
}
