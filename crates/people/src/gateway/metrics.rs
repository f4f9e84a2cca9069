//! Metrics of the gateway: connections, frames, and reasons for closing.

use metrics::{Counter, Gauge, counter, gauge};
use whimbrel_model::people::CloseCode;

pub const CONNECTIONS: &str = "whimbrel_gateway_connections";
pub const REJECTED: &str = "whimbrel_gateway_rejected_total";
pub const FRAMES_IN: &str = "whimbrel_gateway_frames_in_total";
pub const FRAMES_OUT: &str = "whimbrel_gateway_frames_out_total";
pub const DROPPED: &str = "whimbrel_gateway_dropped_total";
pub const CLOSED: &str = "whimbrel_gateway_closed_total";

pub const NAMES: &[(&str, &str)] = &[
    (CONNECTIONS, "Open connections of devices"),
    (REJECTED, "Rejected connections of devices, by reason: too many open, or too many per second"),
    (FRAMES_IN, "Frames received from devices"),
    (FRAMES_OUT, "Frames sent to devices"),
    (DROPPED, "Ephemeral messages dropped because a device or its gateway was too slow"),
    (CLOSED, "Connections that the gateway closed, by the name of the close code"),
];

pub(super) struct GatewayMetrics {
    pub(super) connections: Gauge,
    pub(super) refused_many: Counter,
    pub(super) refused_rate: Counter,
    pub(super) frames_in: Counter,
    pub(super) frames_out: Counter,
    pub(super) dropped: Counter,
    closed: [Counter; CloseCode::ALL.len()],
    /// Closed with a code of the WebSocket protocol itself.
    pub(super) closed_protocol: Counter,
}

impl GatewayMetrics {
    pub(super) fn new() -> Self {
        Self {
            connections: gauge!(CONNECTIONS),
            refused_many: counter!(REJECTED, "reason" => "connections"),
            refused_rate: counter!(REJECTED, "reason" => "rate"),
            frames_in: counter!(FRAMES_IN),
            frames_out: counter!(FRAMES_OUT),
            dropped: counter!(DROPPED),
            closed: CloseCode::ALL.map(|code| counter!(CLOSED, "code" => code.word())),
            closed_protocol: counter!(CLOSED, "code" => "protocol"),
        }
    }

    pub(super) fn closed(&self, code: CloseCode) {
        if let Some(index) = CloseCode::ALL.iter().position(|one| *one == code) {
            self.closed[index].increment(1);
        }
    }
}
