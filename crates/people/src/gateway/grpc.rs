//! `whimbrel.v1.Gateway/Connect`: the same session over a gRPC stream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use futures_util::Stream;
use futures_util::task::AtomicWaker;
use prost::Message as _;
use tokio::task::AbortHandle;
use tonic::codegen::Service as _;
use tonic::{Status, Streaming};
use whimbrel_model::people::CloseCode;

use super::Gateway;
use super::connect::{EndOnDrop, is_local};
use super::frames::{Format, InboundFrame};
use super::session::{DeviceSession, Transport};
use whimbrel_api::protocol::gateway_server::{Gateway as GatewayService, GatewayServer};
use whimbrel_api::protocol::{ClientFrame, ServerFrame};

pub(super) const PATH: &str = "/whimbrel.v1.Gateway/{*method}";
pub(super) const PATH_START: &str = "/whimbrel.v1.Gateway/";
/// Bytes of the length prefix of a frame.
const LENGTH_BYTES: usize = 4;

pub(super) async fn serve(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let is_local = is_local(request.headers(), request.uri(), request.extensions());
    let largest = gateway.shared.settings.frame_bytes_max;
    let mut service = GatewayServer::new(GrpcGateway { gateway, is_local }).max_decoding_message_size(largest);
    let Ok(response) = service.call(request).await;
    response.map(Body::new)
}

struct GrpcGateway {
    gateway: Arc<Gateway>,
    is_local: bool,
}

#[tonic::async_trait]
impl GatewayService for GrpcGateway {
    type ConnectStream = FrameStream;

    async fn connect(
        &self,
        request: tonic::Request<Streaming<ClientFrame>>,
    ) -> Result<tonic::Response<FrameStream>, Status> {
        let refused = |_| Status::unavailable(CloseCode::Overloaded.word());
        let place = self.gateway.shared.accept().map_err(refused)?;
        let lane = self.gateway.lane_here().ok_or_else(|| Status::unavailable(CloseCode::Overloaded.word()))?;
        let transport = Transport::Polled(AtomicWaker::new());
        let session = DeviceSession::open(&lane, transport, Format::Grpc, self.is_local, place);
        let reader = tokio::spawn(read(Arc::clone(&session), request.into_inner())).abort_handle();
        Ok(tonic::Response::new(FrameStream { session: EndOnDrop(session), left: Bytes::new(), reader }))
    }
}

/// Reads the device's frames until its side ends.
async fn read(session: Arc<DeviceSession>, mut frames: Streaming<ClientFrame>) {
    loop {
        match frames.message().await {
            Ok(Some(frame)) => session.take_frame(InboundFrame::of_frame(frame)),
            // The frame is too large or malformed.
            Err(status) if status.code() != tonic::Code::Cancelled => {
                session.take_frame(Err(status.message().to_owned()));
                return;
            }
            // The device has ended its side and still reads. The last frame is `close`.
            Ok(None) => return session.close_normally(),
            Err(_) => return session.end(),
        }
    }
}

pub(super) struct FrameStream {
    session: EndOnDrop,
    left: Bytes,
    reader: AbortHandle,
}

impl Drop for FrameStream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream for FrameStream {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left.is_empty() {
            match self.session.0.poll_waiting(context) {
                Poll::Ready(Some(bytes)) => self.left = bytes.into(),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
        let length = self.left.get(..LENGTH_BYTES).map(|mut length| length.get_u32() as usize);
        let frame = length.filter(|length| LENGTH_BYTES + length <= self.left.len()).map(|length| {
            self.left.advance(LENGTH_BYTES);
            self.left.split_to(length)
        });
        let frame = frame.and_then(|bytes| ServerFrame::decode(bytes).ok());
        Poll::Ready(Some(frame.ok_or_else(|| Status::internal("truncated frame in the queue"))))
    }
}
