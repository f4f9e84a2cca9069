//! What a gateway is set to: every bound of a connection, in one place.

use std::time::Duration;

#[derive(Debug, Clone)]
pub struct GatewaySettings {
    /// Connections at the same time; more are refused with 503.
    pub connections_max: usize,
    /// Connections that are accepted in one second; 0: as many as come.
    pub accepts_per_second: u32,
    /// How long a connection may take until its first frame.
    pub handshake_wait: Duration,
    /// Bytes of one frame, and of one message, of a client.
    pub frame_bytes_max: usize,
    /// Bytes that wait for a device to read them. A single larger message is sent where nothing else waits.
    pub queue_bytes_max: usize,
    /// How long a device may read nothing while something waits for it.
    pub stuck_wait: Duration,
    /// After how much silence a device is asked whether it is there.
    pub ping_interval: Duration,
    /// How long it may take to answer.
    pub pong_wait: Duration,
    /// Over which time devices come back after this gateway went down.
    pub goaway_spread: Duration,
    /// How long a device waits for its user's partition to have an owner.
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
