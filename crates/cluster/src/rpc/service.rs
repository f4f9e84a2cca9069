//! The gRPC service for calls of other nodes. It checks the caller's key before it reads a request, and bounds the bytes of each.

use std::collections::HashMap;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Buf as _;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::wire::{decode_message, encode_message};
use super::{InternalCall, Wire};
use crate::admission::Admission;

/// The name of the gRPC service. A node has one, with the calls of all its roles.
pub const SERVICE: &str = "whimbrel.internal.Node";

type CallHandler = Arc<dyn Fn(http::Request<Body>) -> BoxFuture<http::Response<Body>, Infallible> + Send + Sync>;

/// Answers calls of other nodes.
#[derive(Clone)]
pub struct InternalService {
    admission: Admission,
    /// By the path of the call.
    handlers: Arc<HashMap<&'static str, CallHandler>>,
}

impl InternalService {
    /// If a key is set, calls without it are rejected before their request is read.
    pub fn new(admission: impl Into<Admission>) -> Self {
        Self { admission: admission.into(), handlers: Arc::default() }
    }

    /// Answers the call `C` with the result of `answer`, which gets `state`.
    pub fn answering<C, S, F>(
        mut self,
        state: Arc<S>,
        answer: impl Fn(Arc<S>, C::Request) -> F + Copy + Send + Sync + 'static,
    ) -> Self
    where
        C: InternalCall,
        S: ?Sized + Send + Sync + 'static,
        F: Future<Output = C::Reply> + Send + 'static,
    {
        let admission = self.admission.clone();
        let handler: CallHandler =
            Arc::new(move |request: http::Request<Body>| -> BoxFuture<http::Response<Body>, Infallible> {
                if let Err(status) = admission.admit_headers(request.headers()) {
                    return Box::pin(std::future::ready(Ok(status.into_http())));
                }
                let state = Arc::clone(&state);
                let answer = move |request| answer(Arc::clone(&state), request);
                let call = CallAnswer::<C, _> { answer, call: PhantomData };
                Box::pin(async move {
                    let codec = MessageCodec::<C::Reply, C::Request>::new();
                    let mut grpc = Grpc::new(codec).max_decoding_message_size(C::REQUEST_BYTES_MAX);
                    Ok(grpc.unary(call, request).await)
                })
            });
        Arc::make_mut(&mut self.handlers).insert(C::PATH, handler);
        self
    }

    /// Answers the calls of another service too.
    pub fn and(mut self, other: &Self) -> Self {
        Arc::make_mut(&mut self.handlers).extend(other.handlers.iter().map(|(path, handler)| (*path, handler.clone())));
        self
    }
}

impl NamedService for InternalService {
    const NAME: &'static str = SERVICE;
}

impl Service<http::Request<Body>> for InternalService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self.handlers.get(request.uri().path()) {
            Some(handler) => handler(request),
            None => {
                let reason = format!("this node does not serve {}: it does not have the role", request.uri().path());
                Box::pin(std::future::ready(Ok(Status::unimplemented(reason).into_http())))
            }
        }
    }
}

struct CallAnswer<C, A> {
    answer: A,
    call: PhantomData<fn() -> C>,
}

impl<C, A, F> UnaryService<Result<C::Request, String>> for CallAnswer<C, A>
where
    C: InternalCall,
    A: Fn(C::Request) -> F,
    F: Future<Output = C::Reply> + Send + 'static,
{
    type Response = C::Reply;
    type Future = BoxFuture<Response<C::Reply>, Status>;

    fn call(&mut self, request: Request<Result<C::Request, String>>) -> Self::Future {
        match request.into_inner() {
            Ok(request) => {
                let reply = (self.answer)(request);
                Box::pin(async move { Ok(Response::new(reply.await)) })
            }
            Err(malformed) => Box::pin(std::future::ready(Err(Status::invalid_argument(malformed)))),
        }
    }
}

/// Encodes messages `E` and decodes messages `D`. A message that cannot be decoded is an item: only the receiver of a request may reject it.
pub(crate) struct MessageCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> MessageCodec<E, D> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<E: Wire + Send + 'static, D: Wire + Send + 'static> Codec for MessageCodec<E, D> {
    type Encode = E;
    type Decode = Result<D, String>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<E: Wire, D> Encoder for MessageCodec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, message: E, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        encode_message(&message, into);
        Ok(())
    }
}

impl<E, D: Wire> Decoder for MessageCodec<E, D> {
    type Item = Result<D, String>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        Ok(Some(decode_message(from.copy_to_bytes(from.remaining()))))
    }
}
