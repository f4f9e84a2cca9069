//! Lingering close of an HTTP/1.1 connection whose request was answered before its body was read.
//!
//! If a TCP socket is closed with unread data, it is reset, and a client that is still sending loses the answer: it reports a broken pipe
//! instead of 413. So the write side is closed first, and further input is discarded, up to a timeout and a number of bytes, before the
//! socket is closed.
//!
//! [`TrackedBody`] notes that a body was dropped before its end; [`LingeringStream`] then lingers. Requests whose body is read to its end
//! are unaffected.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Version;
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

const DISCARD_AT_ONCE: usize = 16 << 10;

/// How much a lingering connection reads before it is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LingerLimits {
    pub bytes: usize,
    pub timeout: Duration,
}

/// Whether a request of a connection was answered before its body was read. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct Unread(Arc<AtomicBool>);

impl Unread {
    /// Tracks the body of the connection's next request. The connection lingers if the body is dropped before its end.
    ///
    /// HTTP/2 requests are not tracked: they are concurrent, and dropping one resets only its stream.
    pub fn track<B: Body>(&self, version: Version, body: B) -> TrackedBody<B> {
        let is_followed = version != Version::HTTP_2 && !body.is_end_stream();
        self.0.store(false, Ordering::Relaxed);
        let unread = is_followed.then(|| self.clone());
        TrackedBody { body, unread }
    }
}

/// A request's body that notes whether it was read to its end.
pub struct TrackedBody<B: Body> {
    body: B,
    /// Set while input may be left.
    unread: Option<Unread>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if matches!(frame, None | Some(Err(_))) {
            self.unread = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        if let Some(unread) = self.unread.take().filter(|_| !self.body.is_end_stream()) {
            unread.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A TCP connection that discards input for a while before it closes, if a body was left unread.
pub struct LingeringStream {
    stream: TcpStream,
    unread: Unread,
    limits: LingerLimits,
    lingering: Option<Lingering>,
}

struct Lingering {
    bytes_left: usize,
    until: Pin<Box<Sleep>>,
}

impl LingeringStream {
    pub fn new(stream: TcpStream, unread: Unread, limits: LingerLimits) -> Self {
        Self { stream, unread, limits, lingering: None }
    }

    pub fn get_ref(&self) -> &TcpStream {
        &self.stream
    }

    pub fn into_inner(self) -> TcpStream {
        self.stream
    }

    /// Ready when the client has ended its side, or a limit is reached.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { stream, limits, lingering, .. } = self;
        let lingering = lingering
            .get_or_insert_with(|| Lingering { bytes_left: limits.bytes, until: Box::pin(sleep(limits.timeout)) });
        let mut scratch = [0; DISCARD_AT_ONCE];
        while lingering.bytes_left > 0 {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut *stream).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    lingering.bytes_left = lingering.bytes_left.saturating_sub(buffer.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return lingering.until.as_mut().poll(context),
            }
        }
        Poll::Ready(())
    }
}

impl AsyncRead for LingeringStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for LingeringStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        if self.unread.0.load(Ordering::Relaxed) {
            ready!(self.poll_discard(context));
        }
        Poll::Ready(Ok(()))
    }
}
