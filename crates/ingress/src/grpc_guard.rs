//! What stands before every gRPC call: the key is looked at before a byte of the body is taken, what has come of the body counts as
//! under way until the call has ended, and a body that stands still is given up.
//!
//! The service behind it collects a whole message before it is asked anything, so nothing of this can be left to the calls themselves.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, any};
use http::Extensions;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::codegen::Service;

use super::answer::held_until_taken;
use super::body::too_slow;
use super::door::Door;
use super::keys::Caller;
use super::load::{InFlight, Load};
use super::problem::{Code, Problem};

/// Who calls, and what of the call's body is under way. Each call finds it in its extensions.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) caller: Caller,
    load: Arc<Mutex<Load>>,
}

impl Call {
    pub(super) fn of(extensions: &mut Extensions) -> Self {
        extensions.remove().expect("nobody gets to the service but through the guard")
    }

    /// The whole load, for whoever has the message from now on.
    pub(super) fn take_load(&self, in_flight: &Arc<InFlight>) -> Load {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *load, in_flight.begin())
    }
}

/// A service with its guard.
pub(super) fn guarded<S>(service: S) -> MethodRouter<Arc<Door>>
where
    S: Service<Request<GuardedBody>, Response = http::Response<tonic::body::Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
{
    any(move |State(door): State<Arc<Door>>, request: Request| {
        let mut service = service.clone();
        async move {
            let request = match admit(&door, request) {
                Ok(request) => request,
                Err(problem) => return Status::from(problem).into_http(),
            };
            let Ok(response) = service.call(request).await;
            hold_answer(response)
        }
    })
}

fn admit(door: &Arc<Door>, request: Request) -> Result<Request<GuardedBody>, Problem> {
    let caller = door.keys.caller(request.headers())?;
    let load = Arc::new(Mutex::new(door.in_flight.begin()));
    let mut request = request.map(|body| GuardedBody {
        body,
        load: Arc::clone(&load),
        wait: door.settings.body_wait,
        given_up_at: None,
    });
    request.extensions_mut().insert(Call { caller, load });
    Ok(request)
}

/// An answer that brought its load keeps it until the client has taken its bytes.
fn hold_answer(mut response: http::Response<tonic::body::Body>) -> Response {
    let Some(load) = response.extensions_mut().remove::<Arc<Load>>() else { return response.map(Body::new) };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| frame.map_data(|bytes| held_until_taken(bytes, Arc::clone(&load)))))
    })
}

/// A call's body. Its errors are the statuses that the call is answered with.
pub(super) struct GuardedBody {
    body: Body,
    load: Arc<Mutex<Load>>,
    wait: Duration,
    /// Set where the next piece has to be waited for.
    given_up_at: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for GuardedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Pending => {
                let wait = this.wait;
                let given_up_at = this.given_up_at.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
                given_up_at.as_mut().poll(context).map(|()| Some(Err(too_slow(wait).into())))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                let problem = Problem::new(Code::BadBody, format!("the body broke off: {error}"));
                Poll::Ready(Some(Err(problem.into())))
            }
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(given_up_at) = &mut this.given_up_at {
                    given_up_at.as_mut().reset(Instant::now() + this.wait);
                }
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let grown = this.load.lock().unwrap_or_else(PoisonError::into_inner).grow(bytes);
                Poll::Ready(Some(grown.map(|()| frame).map_err(Status::from)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
