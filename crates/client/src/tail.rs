//! Follows a topic: the server's event stream as a stream of messages.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use hyper::body::{Body as _, Incoming};

use crate::sse::{EventReader, SseEvent};
use whimbrel_api::messages::Message;

use crate::ClientError;

/// The stream of [`crate::Client::tail`]. It ends when the server ends it, and after an error. [`Tail::last_event_id`] resumes it.
#[derive(Debug)]
pub struct Tail {
    server: String,
    body: Incoming,
    reader: EventReader,
    ready: VecDeque<SseEvent>,
    last_event_id: Option<String>,
    ended: bool,
}

impl Tail {
    pub(crate) fn new(server: String, body: Incoming) -> Self {
        Self { server, body, reader: EventReader::default(), ready: VecDeque::new(), last_event_id: None, ended: false }
    }

    /// The position of the stream, to resume from.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    fn message_of(&mut self, event: SseEvent) -> Option<Result<Message, ClientError>> {
        if event.id.is_some() {
            self.last_event_id = event.id;
        }
        match event.kind.as_str() {
            "" | "message" => Some(serde_json::from_str(&event.data).map_err(|_| self.unexpected(&event.data))),
            "problem" | "error" => Some(Err(match serde_json::from_str(&event.data) {
                Ok(problem) => ClientError::Problem(Box::new(problem)),
                Err(_) => self.unexpected(&event.data),
            })),
            _ => None,
        }
    }

    fn unexpected(&self, data: &str) -> ClientError {
        ClientError::Unexpected { server: self.server.clone(), status: 200, shown: data.chars().take(200).collect() }
    }

    fn broken(&self, why: impl ToString) -> ClientError {
        ClientError::Broken { server: self.server.clone(), why: why.to_string() }
    }
}

impl Stream for Tail {
    type Item = Result<Message, ClientError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            while let Some(event) = self.ready.pop_front() {
                if let Some(item) = self.message_of(event) {
                    return Poll::Ready(Some(item));
                }
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let failure = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => {
                    self.ended = true;
                    continue;
                }
                Some(Err(error)) => self.broken(crate::client::why(&error)),
                Some(Ok(frame)) => {
                    let Ok(chunk) = frame.into_data() else { continue };
                    let mut events = Vec::new();
                    match self.reader.take(&chunk, &mut events) {
                        Ok(()) => {
                            self.ready.extend(events);
                            continue;
                        }
                        Err(error) => self.broken(error),
                    }
                }
            };
            self.ended = true;
            return Poll::Ready(Some(Err(failure)));
        }
    }
}
