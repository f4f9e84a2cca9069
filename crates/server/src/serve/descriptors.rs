//! File descriptors: the limit of the process, and a reserve that connections never use.
//!
//! The log and the stores open files all the time. If connections used every descriptor, a checkpoint could not be written. So new
//! connections wait while fewer than the reserve are free; open connections continue.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use whimbrel_model::{Event, EventSink};

/// Descriptors reserved for files and for outgoing connections of the server.
const RESERVED: u64 = 256;
/// The reserve is at most the limit divided by this.
const RESERVED_PART: u64 = 2;
/// Interval at which a waiting connection checks for a free descriptor.
const ROOM_PAUSE: Duration = Duration::from_millis(50);
/// A shortage is reported at most once in this time.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

pub struct Descriptors {
    limit: u64,
    reserved: u64,
    events: EventSink,
    told: Mutex<Option<Instant>>,
}

impl Descriptors {
    /// Raises the soft limit to the hard one, and reports the result.
    pub fn raise_limit(connections_max: usize, events: EventSink) -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let mut limit = current;
        if current != maximum {
            match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
                Ok(()) => limit = maximum,
                Err(error) => tracing::warn!(%error, "cannot raise the limit of file descriptors"),
            }
        }
        let descriptors = Self::of_limit(limit.unwrap_or(u64::MAX), events);
        let Self { limit, reserved, .. } = descriptors;
        metrics::gauge!("whimbrel_descriptors_limit").set(limit as f64);
        tracing::info!(limit, reserved, "file descriptors");
        if limit - reserved < connections_max as u64 {
            tracing::warn!(
                "`connections_max` is {connections_max}, and the limit of file descriptors allows {} connections: raise `LimitNOFILE` or \
                 `ulimit -n`, or lower `connections_max`",
                limit - reserved
            );
        }
        descriptors
    }

    pub fn of_limit(limit: u64, events: EventSink) -> Self {
        Self { limit, reserved: RESERVED.min(limit / RESERVED_PART), events, told: Mutex::default() }
    }

    /// The descriptors for connections from other nodes. These may use half of the reserve: nodes must reach each other however many
    /// clients connect.
    pub fn of_nodes(&self) -> Self {
        let events = EventSink::clone(&self.events);
        Self { limit: self.limit, reserved: self.reserved / 2, events, told: Mutex::default() }
    }

    /// Waits until the connection leaves the reserve free. Returns the same connection under a descriptor below the reserve, and frees the
    /// descriptor under which it waited.
    pub async fn wait_for_room<C: AsFd + From<OwnedFd>>(&self, connection: C) -> C {
        if self.leaves_reserve(&connection) {
            return connection;
        }
        self.tell();
        loop {
            if let Some(moved) = self.move_below_reserve(&connection) {
                return moved.into();
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
    }

    /// The system assigns the lowest free number: all numbers below a new descriptor are in use.
    fn leaves_reserve(&self, new: &impl AsFd) -> bool {
        let number = u64::try_from(new.as_fd().as_raw_fd()).unwrap_or(0);
        number < self.limit - self.reserved
    }

    fn move_below_reserve(&self, connection: &impl AsFd) -> Option<OwnedFd> {
        let moved = rustix::io::fcntl_dupfd_cloexec(connection, 0).ok()?;
        self.leaves_reserve(&moved).then_some(moved)
    }

    fn tell(&self) {
        let Ok(mut told) = self.told.lock() else { return };
        if told.is_some_and(|told| told.elapsed() < TOLD_AGAIN) {
            return;
        }
        *told = Some(Instant::now());
        let Self { limit, reserved, .. } = self;
        let detail = format!(
            "new connections wait: of {limit} file descriptors, {reserved} are reserved for files, and all others are in use. Raise \
             `LimitNOFILE` or `ulimit -n`"
        );
        (self.events)(Event::warning("descriptors_short", detail).with("limit", limit).with("reserved", reserved));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_small_limit_keeps_half_of_it() {
        let none: EventSink = Arc::new(|_| {});
        assert_eq!(Descriptors::of_limit(100, none.clone()).reserved, 50);
        assert_eq!(Descriptors::of_limit(1024, none).reserved, RESERVED);
    }

    #[tokio::test]
    async fn a_connection_waits_for_the_reserve_and_the_shortage_is_reported_once() {
        let (told, events) = std::sync::mpsc::channel();
        let file = File::open("/dev/null").unwrap();
        // Other tests of this process hold descriptors too, so the limit is just above the open ones.
        let number = u64::try_from(file.as_raw_fd()).unwrap();
        let sink: EventSink = Arc::new(move |event| drop(told.send(event)));
        let open = Descriptors { limit: number + 1000, reserved: 100, events: sink.clone(), told: Mutex::default() };
        let copy = |file: &File| file.try_clone().unwrap();
        open.wait_for_room(copy(&file)).await;
        assert_eq!(events.try_iter().count(), 0);
        let short = Descriptors { limit: number, reserved: number, events: sink, told: Mutex::default() };
        for _ in 0..2 {
            let waited = tokio::time::timeout(3 * ROOM_PAUSE, short.wait_for_room(copy(&file))).await;
            assert!(waited.is_err(), "no descriptor is free");
        }
        assert_eq!(events.try_iter().map(|event| event.kind).collect::<Vec<_>>(), ["descriptors_short"]);
    }
}
