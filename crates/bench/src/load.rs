//! The load generator: many connections on few threads, each thread one epoll loop over plain sockets.
//!
//! It shares the machine with the measured server, so it must be lean: requests are rendered once, answers are read only for their
//! status and end, and no runtime is between it and the sockets. The loop waits with nanosecond timeouts, because timers of a
//! millisecond cannot keep a steady rate. Linux only, because of epoll.

use std::borrow::Cow;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::histogram::Histogram;
use super::wire::{AnswerReader, InvalidAnswer};

/// Timeout for answers after the last request of a steady rate.
const DRAIN_WAIT: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;
/// The minimum rate of a load, in requests per second.
const RATE_MIN: f64 = 1.0;
/// Longest sleep of the loop, so that it notices the end of its time.
const SLEEP_MAX: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
pub struct RequestLoad<'a> {
    pub address: SocketAddr,
    pub requests: Requests<'a>,
    pub connections: usize,
    pub threads: usize,
    pub pace: LoadPace,
    pub warmup: Duration,
    pub duration: Duration,
    /// Ends the load early.
    pub stop: Option<&'a AtomicBool>,
}

#[derive(Clone, Copy)]
pub enum Requests<'a> {
    /// The same request each time, rendered once.
    Same(&'a [u8]),
    /// A request by its number. Each number is used once, over all connections. The load ends at the first `None`.
    Each(&'a (dyn Fn(u64) -> Option<Vec<u8>> + Sync)),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadPace {
    /// Every connection sends its next request after the answer to the previous one.
    Saturate,
    /// This many requests per second, sent when they are due whatever the answers do. Latency counts from the time when a request was
    /// due, even if no connection was free then.
    Steady { per_second: f64 },
}

#[derive(Debug, Clone, Default)]
pub struct LoadOutcome {
    pub latency: Histogram,
    pub refused: u64,
    pub first_refusal: Option<String>,
    /// Requests of a steady rate without an answer in time.
    pub unanswered: u64,
    pub measured: Duration,
}

impl LoadOutcome {
    pub fn per_second(&self) -> f64 {
        self.latency.count() as f64 / self.measured.as_secs_f64().max(1e-9)
    }

    /// Adds the results of another period.
    pub fn then(mut self, later: Self) -> Self {
        let measured = self.measured + later.measured;
        self.beside(&later);
        self.measured = measured;
        self
    }

    fn beside(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.first_refusal = self.first_refusal.take().or_else(|| other.first_refusal.clone());
        self.measured = self.measured.max(other.measured);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("a connection to {0} failed: {1}")]
    LoadConnection(SocketAddr, io::Error),
    #[error("{0} closed a connection")]
    Closed(SocketAddr),
    #[error(transparent)]
    InvalidAnswer(#[from] InvalidAnswer),
    #[error("a thread of the load generator ended early")]
    Panicked,
}

pub fn run(load: RequestLoad<'_>) -> Result<LoadOutcome, LoadError> {
    let threads = load.threads.clamp(1, load.connections);
    let dealt = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let shares: Vec<_> = (0..threads)
            .map(|thread| {
                let connections = load.connections / threads + usize::from(thread < load.connections % threads);
                let pace = match load.pace {
                    LoadPace::Saturate => LoadPace::Saturate,
                    LoadPace::Steady { per_second } => LoadPace::Steady { per_second: per_second / threads as f64 },
                };
                scope.spawn(move || LoadDriver::connect(RequestLoad { connections, pace, ..load }, dealt)?.run())
            })
            .collect();
        let mut total = LoadOutcome::default();
        for share in shares {
            total.beside(&share.join().map_err(|_| LoadError::Panicked)??);
        }
        Ok(total)
    })
}

struct LoadConnection<'a> {
    stream: TcpStream,
    request: Cow<'a, [u8]>,
    answers: AnswerReader,
    /// The due time of the request in progress, and the bytes of it that are sent; `None` while the connection is free.
    under_way: Option<(Instant, usize)>,
    waits_for_room: bool,
}

struct LoadDriver<'a> {
    load: RequestLoad<'a>,
    epoll: rustix::fd::OwnedFd,
    connections: Vec<LoadConnection<'a>>,
    free: Vec<usize>,
    /// Requests used so far, by all threads.
    dealt: &'a AtomicU64,
    /// The requests are used up.
    is_exhausted: bool,
    outcome: LoadOutcome,
    measured_from: Instant,
    buffer: Box<[u8]>,
}

impl<'a> LoadDriver<'a> {
    fn connect(load: RequestLoad<'a>, dealt: &'a AtomicU64) -> Result<Self, LoadError> {
        let failed = |error: io::Error| LoadError::LoadConnection(load.address, error);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let mut connections = Vec::with_capacity(load.connections);
        for index in 0..load.connections {
            let stream = TcpStream::connect(load.address).map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            stream.set_nonblocking(true).map_err(failed)?;
            epoll::add(&epoll, &stream, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)
                .map_err(|error| failed(error.into()))?;
            let answers = AnswerReader::default();
            let request = Cow::Borrowed(&[][..]);
            connections.push(LoadConnection { stream, request, answers, under_way: None, waits_for_room: false });
        }
        Ok(Self {
            load,
            epoll,
            free: (0..load.connections).collect(),
            connections,
            dealt,
            is_exhausted: false,
            outcome: LoadOutcome::default(),
            measured_from: Instant::now(),
            buffer: vec![0; READ_BYTES].into(),
        })
    }

    fn run(mut self) -> Result<LoadOutcome, LoadError> {
        // Without this the kernel rounds every wait up by 50 µs. If it is not permitted, waits are a little less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let began = Instant::now();
        self.measured_from = began + self.load.warmup;
        let until = self.measured_from + self.load.duration;
        match self.load.pace {
            LoadPace::Saturate => self.saturate(until)?,
            LoadPace::Steady { per_second } => self.keep_rate(began, until, per_second)?,
        }
        Ok(self.outcome)
    }

    fn is_over(&self) -> bool {
        self.is_exhausted || self.load.stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    fn note_time(&mut self, until: Instant) {
        self.outcome.measured = Instant::now().min(until).saturating_duration_since(self.measured_from);
    }

    fn saturate(&mut self, until: Instant) -> Result<(), LoadError> {
        loop {
            let now = Instant::now();
            // Requests in progress at the end of the time do not count; if the requests are used up, the last ones do.
            let is_done = self.is_over() && (!self.is_exhausted || self.free.len() == self.connections.len());
            if now >= until || is_done {
                self.note_time(until);
                return Ok(());
            }
            while !self.is_over() {
                let Some(index) = self.free.pop() else { break };
                self.send(index, now)?;
            }
            self.wait(SLEEP_MAX)?;
        }
    }

    fn keep_rate(&mut self, began: Instant, until: Instant, per_second: f64) -> Result<(), LoadError> {
        // On an overloaded machine the measured rate can be zero.
        let per_second = per_second.max(RATE_MIN);
        let due_at = |number: u64| began + Duration::from_secs_f64(number as f64 / per_second);
        let mut number = 0;
        let mut due = due_at(number);
        while (Instant::now() < until || due < until) && !self.is_over() {
            while due <= Instant::now() && due < until && !self.is_over() {
                let Some(index) = self.free.pop() else { break };
                self.send(index, due)?;
                number += 1;
                due = due_at(number);
            }
            if Instant::now() >= until + DRAIN_WAIT {
                break;
            }
            // Without a free connection only an answer helps; waiting until the next request is due would spin.
            let next = if self.free.is_empty() { SLEEP_MAX } else { due.saturating_duration_since(Instant::now()) };
            self.wait(next.min(SLEEP_MAX))?;
        }
        self.note_time(until);
        let ended_early = self.is_over();
        let drained_by = Instant::now() + DRAIN_WAIT;
        while self.free.len() < self.connections.len() && Instant::now() < drained_by {
            self.wait(SLEEP_MAX)?;
        }
        let never_sent =
            if due < until && !ended_early { ((until - due).as_secs_f64() * per_second) as u64 } else { 0 };
        self.outcome.unanswered = (self.connections.len() - self.free.len()) as u64 + never_sent;
        Ok(())
    }

    /// Waits for the sockets and handles those that are ready.
    fn wait(&mut self, at_most: Duration) -> Result<(), LoadError> {
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(self.connections.len());
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(LoadError::LoadConnection(self.load.address, error.into())),
        }
        for event in &events {
            let (index, flags) = (event.data.u64() as usize, event.flags);
            if flags.intersects(epoll::EventFlags::OUT) {
                self.send_rest(index)?;
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                self.receive(index)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, index: usize, due: Instant) -> Result<(), LoadError> {
        let request = match self.load.requests {
            Requests::Same(request) => Some(Cow::Borrowed(request)),
            Requests::Each(render) => render(self.dealt.fetch_add(1, Ordering::Relaxed)).map(Cow::Owned),
        };
        let Some(request) = request else {
            self.is_exhausted = true;
            self.free.push(index);
            return Ok(());
        };
        self.connections[index].request = request;
        self.connections[index].under_way = Some((due, 0));
        self.send_rest(index)
    }

    fn send_rest(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        let Some((_, sent)) = &mut connection.under_way else { return Ok(()) };
        let mut is_full = false;
        while *sent < connection.request.len() && !is_full {
            match connection.stream.write(&connection.request[*sent..]) {
                Ok(written) => *sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => is_full = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(LoadError::LoadConnection(self.load.address, error)),
            }
        }
        if is_full != connection.waits_for_room {
            connection.waits_for_room = is_full;
            let room = if is_full { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(index as u64);
            epoll::modify(&self.epoll, &connection.stream, data, epoll::EventFlags::IN | room)
                .map_err(|error| LoadError::LoadConnection(self.load.address, error.into()))?;
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[index];
        let read = match connection.stream.read(&mut self.buffer) {
            Ok(0) => return Err(LoadError::Closed(self.load.address)),
            Ok(read) => read,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(LoadError::LoadConnection(self.load.address, error)),
        };
        let Some(status) = connection.answers.take(&self.buffer[..read])? else { return Ok(()) };
        let (due, _) = connection.under_way.take().ok_or(InvalidAnswer)?;
        let now = Instant::now();
        let counts_from = if self.load.pace == LoadPace::Saturate { now } else { due };
        if status >= 300 {
            self.outcome.refused += 1;
            let shown = connection.answers.take_shown();
            self.outcome.first_refusal.get_or_insert_with(|| format!("{status} {shown}"));
        } else if counts_from >= self.measured_from {
            self.outcome.latency.record(now - due);
        }
        if self.load.pace == LoadPace::Saturate && !self.is_over() {
            return self.send(index, now);
        }
        self.free.push(index);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    /// Answers every request on every connection, after a pause before the first.
    fn answering_server(first_pause: Duration, answers: &'static AtomicU64) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream, first_pause, answers));
            }
        });
        address
    }

    fn serve(mut stream: TcpStream, first_pause: Duration, answers: &AtomicU64) {
        let mut request = [0; REQUEST.len()];
        let mut pause = first_pause;
        while stream.read_exact(&mut request).is_ok() {
            std::thread::sleep(std::mem::take(&mut pause));
            answers.fetch_add(1, Ordering::Relaxed);
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_err() {
                return;
            }
        }
    }

    fn load(address: SocketAddr, connections: usize, pace: LoadPace) -> RequestLoad<'static> {
        let (warmup, duration) = (Duration::ZERO, Duration::from_millis(200));
        RequestLoad {
            address,
            requests: Requests::Same(REQUEST),
            connections,
            threads: 2,
            pace,
            warmup,
            duration,
            stop: None,
        }
    }

    #[test]
    fn a_load_of_counted_requests_ends_when_all_are_answered() {
        static ANSWERS: AtomicU64 = AtomicU64::new(0);
        let address = answering_server(Duration::ZERO, &ANSWERS);
        let requests = Requests::Each(&|number| (number < 25).then(|| REQUEST.to_vec()));
        let whole = RequestLoad { requests, duration: Duration::from_secs(60), ..load(address, 4, LoadPace::Saturate) };
        let outcome = run(whole).unwrap();
        assert_eq!((outcome.latency.count(), ANSWERS.load(Ordering::Relaxed)), (25, 25));
        assert!(outcome.measured < Duration::from_secs(60));
    }

    #[test]
    fn a_stopped_load_ends_early() {
        static ANSWERS: AtomicU64 = AtomicU64::new(0);
        static STOP: AtomicBool = AtomicBool::new(false);
        let address = answering_server(Duration::ZERO, &ANSWERS);
        let pace = LoadPace::Steady { per_second: 1000.0 };
        let long = RequestLoad { duration: Duration::from_secs(60), stop: Some(&STOP), ..load(address, 2, pace) };
        let running = std::thread::spawn(move || run(long).unwrap());
        while ANSWERS.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        STOP.store(true, Ordering::Relaxed);
        let outcome = running.join().unwrap();
        assert!(outcome.measured < Duration::from_secs(60) && outcome.unanswered == 0, "{outcome:?}");
    }

    #[test]
    fn every_answer_of_a_saturating_load_is_counted_once() {
        static ANSWERS: AtomicU64 = AtomicU64::new(0);
        let address = answering_server(Duration::ZERO, &ANSWERS);
        let outcome = run(load(address, 4, LoadPace::Saturate)).unwrap();
        let answered = ANSWERS.load(Ordering::Relaxed);
        assert_eq!(outcome.refused, 0);
        assert!((answered - 8..=answered).contains(&outcome.latency.count()), "{answered} {outcome:?}");
    }

    #[test]
    fn latency_counts_from_the_due_time_of_a_request() {
        static ANSWERS: AtomicU64 = AtomicU64::new(0);
        let address = answering_server(Duration::from_millis(100), &ANSWERS);
        let outcome = run(load(address, 2, LoadPace::Steady { per_second: 1000.0 })).unwrap();
        assert_eq!((outcome.latency.count(), outcome.unanswered), (200, 0));
        // A hundred of two hundred were due while both connections stalled: their median wait is half the stall.
        assert!(outcome.latency.quantile(0.75) > Duration::from_millis(30), "{:?}", outcome.latency.quantile(0.75));
    }
}
