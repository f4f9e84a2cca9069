//! The figures of the gateway: connections, what goes through them, how they end.

use metrics::{Counter, Gauge, counter, gauge};
use whimbrel_model::people::CloseCode;

/// Connections of devices that are open.
pub const CONNECTIONS: &str = "whimbrel_gateway_connections";
/// Connections that were refused, by why.
pub const REFUSED: &str = "whimbrel_gateway_refused_total";
/// Frames that devices sent.
pub const FRAMES_IN: &str = "whimbrel_gateway_frames_in_total";
/// Frames that devices were sent.
pub const FRAMES_OUT: &str = "whimbrel_gateway_frames_out_total";
/// Messages that were not stored and that a device did not read fast enough for, or its gateway: counted where they were dropped.
pub const DROPPED: &str = "whimbrel_gateway_dropped_total";
/// Connections that the gateway closed, by the code's word.
pub const CLOSED: &str = "whimbrel_gateway_closed_total";

/// Every name above with what it means.
pub const NAMES: &[(&str, &str)] = &[
    (CONNECTIONS, "Connections of devices that are open"),
    (REFUSED, "Connections of devices that were refused, by why: too many, or too many at once"),
    (FRAMES_IN, "Frames that devices sent"),
    (FRAMES_OUT, "Frames that devices were sent"),
    (DROPPED, "Ephemeral messages dropped because a device, or the gateway that it is at, did not read fast enough"),
    (CLOSED, "Connections that the gateway closed, by the word of the code"),
];

pub(super) struct GatewayFigures {
    pub(super) connections: Gauge,
    pub(super) refused_many: Counter,
    pub(super) refused_rate: Counter,
    pub(super) frames_in: Counter,
    pub(super) frames_out: Counter,
    pub(super) dropped: Counter,
    closed: [Counter; CloseCode::ALL.len()],
    /// Closed with a code of the protocol itself.
    pub(super) closed_protocol: Counter,
}

impl GatewayFigures {
    pub(super) fn new() -> Self {
        Self {
            connections: gauge!(CONNECTIONS),
            refused_many: counter!(REFUSED, "why" => "connections"),
            refused_rate: counter!(REFUSED, "why" => "rate"),
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
