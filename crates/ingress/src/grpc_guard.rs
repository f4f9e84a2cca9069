//! The guard of every gRPC call. It checks the key before it reads the body, counts received bytes as load until the call ends, and times
//! out a stalled body.
//!
//! The service behind it collects a whole message before it calls a method, so the methods cannot do this themselves.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{MethodRouter, any};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};
use tonic::Status;
use tonic::codegen::Service;

use crate::answer::held_until_taken;
use crate::api_state::ApiState;
use crate::body::too_slow;
use crate::keys::Caller;
use crate::load::{InFlightBytes, LoadGuard};
use crate::problem::{ApiProblem, Code};

/// The caller and the load of a call. Each method finds it in the extensions of its request.
#[derive(Clone)]
pub(super) struct GrpcCall {
    pub(super) caller: Caller,
    load: Arc<Mutex<LoadGuard>>,
}

impl GrpcCall {
    pub(super) fn split<T>(request: tonic::Request<T>) -> (Self, T) {
        let (_, mut extensions, message) = request.into_parts();
        (extensions.remove().expect("the guard adds the call to every request"), message)
    }

    /// Takes the whole load, for the code that handles the message from now on.
    pub(super) fn take_load(&self, in_flight: &Arc<InFlightBytes>) -> LoadGuard {
        let mut load = self.load.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *load, in_flight.begin())
    }
}

/// Wraps a service with the guard.
pub(super) fn guarded<S>(service: S) -> MethodRouter<Arc<ApiState>>
where
    S: Service<Request<GuardedBody>, Response = http::Response<tonic::body::Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
{
    any(move |State(api): State<Arc<ApiState>>, request: Request| {
        let mut service = service.clone();
        async move {
            let request = match admit(&api, request) {
                Ok(request) => request,
                Err(problem) => return Status::from(problem).into_http(),
            };
            let Ok(response) = service.call(request).await;
            hold_answer(response)
        }
    })
}

fn admit(api: &Arc<ApiState>, request: Request) -> Result<Request<GuardedBody>, ApiProblem> {
    let caller = api.keys.caller(request.headers())?;
    let load = Arc::new(Mutex::new(api.in_flight.begin()));
    let mut request = request.map(|body| GuardedBody {
        body,
        load: Arc::clone(&load),
        wait: api.settings.body_timeout,
        given_up_at: None,
    });
    request.extensions_mut().insert(GrpcCall { caller, load });
    Ok(request)
}

/// Keeps the load of an answer until the client has received its bytes.
fn hold_answer(mut response: http::Response<tonic::body::Body>) -> Response {
    let Some(load) = response.extensions_mut().remove::<Arc<LoadGuard>>() else { return response.map(Body::new) };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| frame.map_data(|bytes| held_until_taken(bytes, Arc::clone(&load)))))
    })
}

/// The body of a call. Its errors are the statuses with which the call is answered.
pub(super) struct GuardedBody {
    body: Body,
    load: Arc<Mutex<LoadGuard>>,
    wait: Duration,
    /// The timeout of the next piece. Set only while the body is waited for.
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
                let problem = ApiProblem::new(Code::BadBody, format!("the body is incomplete: {error}"));
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
