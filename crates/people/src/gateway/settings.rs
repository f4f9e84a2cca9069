//! The settings of a gateway: every bound of a connection.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// Open connections, at most. More are rejected with 503.
    pub connections_max: usize,
    /// Connections accepted per second, at most. 0: no limit.
    pub accepts_per_second: u32,
    /// Timeout for the first frame of a connection.
    pub handshake_wait: Duration,
    /// Bytes of one frame, and of one message, of a client, at most.
    pub frame_bytes_max: usize,
    /// Bytes that wait for a device, at most. A single larger message is sent if nothing else waits.
    pub queue_bytes_max: usize,
    /// Timeout for a device that reads nothing while bytes wait for it.
    pub stuck_wait: Duration,
    /// Silence after which the gateway sends a ping.
    pub ping_interval: Duration,
    /// Timeout for the answer to a ping.
    pub pong_wait: Duration,
    /// Period over which devices reconnect after this gateway shuts down.
    pub goaway_spread: Duration,
    /// How long a device waits for an owner of its user's partition.
    pub owner_wait: Duration,
}

impl Default for GatewaySettings {
    fn default() -> Self {
        Self {
            connections_max: 100_000,
            accepts_per_second: 10_000,
            handshake_wait: Duration::from_secs(10),
            frame_bytes_max: 64 << 10,
            queue_bytes_max: 256 << 10,
            stuck_wait: Duration::from_secs(30),
            ping_interval: Duration::from_secs(25),
            pong_wait: Duration::from_secs(10),
            goaway_spread: Duration::from_secs(10),
            owner_wait: Duration::from_secs(5),
        }
    }
}
