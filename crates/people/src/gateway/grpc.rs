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
use super::connect::{Ending, is_local};
use super::frames::{Format, Said};
use super::session::{Session, Way};
use whimbrel_api::protocol::gateway_server::{Gateway as GatewayService, GatewayServer};
use whimbrel_api::protocol::{ClientFrame, ServerFrame};

/// Where the router finds the service.
pub(super) const PATH: &str = "/whimbrel.v1.Gateway/{*method}";
/// What every path that it finds there begins with.
pub(super) const PATH_START: &str = "/whimbrel.v1.Gateway/";
/// Bytes of the length in front of each frame.
const LENGTH_BYTES: usize = 4;

pub(super) async fn serve(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let is_local = is_local(request.headers(), request.uri(), request.extensions());
    let largest = gateway.shared.settings.frame_bytes_max;
    let mut service = GatewayServer::new(Devices { gateway, is_local }).max_decoding_message_size(largest);
    let Ok(response) = service.call(request).await;
    response.map(Body::new)
}

struct Devices {
    gateway: Arc<Gateway>,
    is_local: bool,
}

#[tonic::async_trait]
impl GatewayService for Devices {
    type ConnectStream = Frames;

    async fn connect(
        &self,
        request: tonic::Request<Streaming<ClientFrame>>,
    ) -> Result<tonic::Response<Frames>, Status> {
        let refused = |_| Status::unavailable(CloseCode::Overloaded.word());
        let place = self.gateway.shared.accept().map_err(refused)?;
        let lane = self.gateway.lane_here().ok_or_else(|| Status::unavailable(CloseCode::Overloaded.word()))?;
        let way = Way::Polled(AtomicWaker::new());
        let session = Session::open(&lane, way, Format::Grpc, self.is_local, place);
        let reader = tokio::spawn(read(Arc::clone(&session), request.into_inner())).abort_handle();
        Ok(tonic::Response::new(Frames { session: Ending(session), left: Bytes::new(), reader }))
    }
}

/// Takes what the device sends, until it has said everything.
async fn read(session: Arc<Session>, mut frames: Streaming<ClientFrame>) {
    loop {
        match frames.message().await {
            Ok(Some(frame)) => session.hear(Said::of_frame(frame)),
            // A frame that is too large or no frame at all.
            Err(status) if status.code() != tonic::Code::Cancelled => {
                session.hear(Err(status.message().to_owned()));
                return;
            }
            // The device has ended its side and still reads: the last frame is `close`.
            Ok(None) => return session.close_normally(),
            Err(_) => return session.end(),
        }
    }
}

/// What the device is sent.
pub(super) struct Frames {
    session: Ending,
    left: Bytes,
    reader: AbortHandle,
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream for Frames {
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
        Poll::Ready(Some(frame.ok_or_else(|| Status::internal("a frame was cut"))))
    }
}
