//! The shell of a machine: the task that runs it while this node owns its state.
//!
//! A turn steps the machine with all inputs, performs the effects, and waits for the next input: a request, the result of a call, or a tick
//! at the time that the machine asked for. Each turn takes both requests and calls, so that neither delays the other.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::alarm::Alarm;
use super::machine::{Edge, InputOf, Machine, MachineStart, Performed};

/// The most requests that are taken in one turn.
const REQUESTS_AT_ONCE: usize = 256;
/// Alarms ring this much later than the machine's time, so that the wall clock has reached it. An alarm that rings too early would cost
/// 1 ms.
const WAKE_MARGIN: Duration = Duration::from_micros(30);
/// The shortest pause after a turn without effects.
const IDLE_MICROS_MIN: u64 = 1_000;
/// How often a machine that answers while it starts gets a tick.
const TICK_WHILE_STARTING: Duration = Duration::from_millis(250);
/// The most time for the calls that an ending waits for, and for the last write.
const LAST_CALLS_WITHIN: Duration = Duration::from_secs(5);

/// A call in progress.
pub type MachineCall<D> = Pin<Box<dyn Future<Output = D> + Send>>;

/// The calls of a machine that are in progress. A start over drops them, except the write: the store must not change after its offset is
/// read.
pub struct Calls<D> {
    droppable: FuturesUnordered<MachineCall<D>>,
    write: Option<MachineCall<D>>,
}

impl<D> Default for Calls<D> {
    fn default() -> Self {
        Self { droppable: FuturesUnordered::new(), write: None }
    }
}

impl<D> Calls<D> {
    pub fn begin(&self, call: MachineCall<D>) {
        self.droppable.push(call);
    }

    /// Begins a write. The machine has at most one write in progress.
    pub fn begin_write(&mut self, call: MachineCall<D>) {
        debug_assert!(self.write.is_none(), "two writes at once");
        self.write = Some(call);
    }

    /// The next result: of the write first, which other calls must not delay. Waits forever if no call is in progress.
    async fn next(&mut self) -> D {
        poll_fn(|context| {
            if let Poll::Ready(done) = self.poll_write(context) {
                return Poll::Ready(done);
            }
            match self.droppable.poll_next_unpin(context) {
                Poll::Ready(Some(done)) => Poll::Ready(done),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<D> {
        let Some(write) = &mut self.write else { return Poll::Pending };
        let polled = write.poll_unpin(context);
        if polled.is_ready() {
            self.write = None;
        }
        polled
    }

    /// The result of the write in progress.
    async fn written(&mut self) -> Option<D> {
        let write = self.write.take()?;
        Some(write.await)
    }

    async fn drop_all(&mut self) {
        self.droppable.clear();
        self.written().await;
    }
}

/// Why an owner ended.
enum OwnerEnd {
    Stopped,
    Resigned(String),
}

struct Shell<E: Edge> {
    edge: E,
    machine: E::Machine,
    calls: Calls<E::Done>,
    alarm: Alarm,
    has_started: bool,
}

/// Runs the machine until `stop` is cancelled. Returns a reason if the owner cannot continue.
pub async fn run<E: Edge>(mut edge: E, mut machine: E::Machine, stop: CancellationToken) -> Option<String> {
    let alarm = match Alarm::new() {
        Ok(alarm) => alarm,
        Err(error) => {
            edge.ended(&mut machine);
            return Some(format!("cannot create the timer: {error}"));
        }
    };
    let mut shell = Shell { edge, machine, calls: Calls::default(), alarm, has_started: false };
    let Err(end) = shell.serve(&stop).await;
    shell.end(end).await
}

impl<E: Edge> Shell<E> {
    async fn serve(&mut self, stop: &CancellationToken) -> Result<Infallible, OwnerEnd> {
        let mut inputs = VecDeque::from(self.start(MachineStart::Fenced, stop).await?);
        loop {
            let was_idle = self.step(&mut inputs, stop).await?;
            inputs.extend(self.edge.turned(&mut self.machine, &mut self.calls));
            while inputs.len() < REQUESTS_AT_ONCE
                && let Some(request) = self.edge.try_request()
            {
                inputs.push_back(self.requested(request));
            }
            if stop.is_cancelled() {
                return Err(OwnerEnd::Stopped);
            }
            if inputs.is_empty() {
                inputs.push_back(self.wait(was_idle, stop).await?);
            } else if let Some(done) = self.calls.next().now_or_never() {
                // One call per turn, before the requests: if its result makes the machine start over, the inputs behind it are requests,
                // which are still valid.
                inputs.push_front(self.finished(done));
            }
            // While requests keep arriving, no await above ever pends. Without this one, tokio would stop reporting results of calls when the
            // task has used up its budget, and other tasks on this thread would starve.
            tokio::task::coop::consume_budget().await;
        }
    }

    /// Steps the machine with the inputs and performs the effects. Returns whether there were none.
    async fn step(&mut self, inputs: &mut VecDeque<InputOf<E>>, stop: &CancellationToken) -> Result<bool, OwnerEnd> {
        let mut was_idle = true;
        while let Some(input) = inputs.pop_front() {
            let effects = self.machine.step(self.edge.now(), input);
            was_idle &= effects.is_empty();
            let mut first = Vec::new();
            for effect in effects {
                match self.edge.perform(&self.machine, effect, &mut self.calls) {
                    Performed::Done => {}
                    Performed::Input(input) => first.push(input),
                    Performed::StartOver(start) => first.extend(self.start(start, stop).await?),
                    Performed::Resign(why) => return Err(OwnerEnd::Resigned(why)),
                }
            }
            first.into_iter().rev().for_each(|input| inputs.push_front(input));
        }
        Ok(was_idle)
    }

    /// The next input: the result of a call, a request, or a tick.
    async fn wait(&mut self, was_idle: bool, stop: &CancellationToken) -> Result<InputOf<E>, OwnerEnd> {
        let wake = self.until_wake(was_idle);
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(OwnerEnd::Stopped),
            done = self.calls.next() => Ok(self.finished(done)),
            request = next_request(&mut self.edge) => Ok(self.requested(request)),
            () = self.alarm.after(wake) => Ok(E::tick()),
        }
    }

    /// How long the machine can sleep.
    fn until_wake(&self, was_idle: bool) -> Duration {
        let Some(wake_at) = self.machine.wake_at() else { return E::STEP_EVERY };
        let millis = wake_at.as_millis().saturating_sub(E::time_of(&self.machine).as_millis());
        // If the machine's time is the wall clock's, the fraction of the current millisecond counts too.
        let fraction = self.edge.clock().micros_into().min(999);
        let micros = u64::try_from(millis.saturating_mul(1000).saturating_sub(fraction.into())).unwrap_or(0);
        let wait = Duration::from_micros(if was_idle { micros.max(IDLE_MICROS_MIN) } else { micros }) + WAKE_MARGIN;
        wait.min(E::STEP_EVERY)
    }

    fn requested(&mut self, request: E::Request) -> InputOf<E> {
        self.edge.request(request, &mut self.calls).unwrap_or_else(E::tick)
    }

    fn finished(&mut self, done: E::Done) -> InputOf<E> {
        self.edge.finished(done, &mut self.calls).unwrap_or_else(E::tick)
    }

    /// Starts the machine, also again. A request that waits too long meanwhile gets an error that nothing was done.
    async fn start(&mut self, start: MachineStart, stop: &CancellationToken) -> Result<Vec<InputOf<E>>, OwnerEnd> {
        self.has_started = false;
        self.calls.drop_all().await;
        let mut starting = self.edge.start(start);
        loop {
            let input = tokio::select! {
                biased;
                () = stop.cancelled() => return Err(OwnerEnd::Stopped),
                started = &mut starting => {
                    let started = started.map_err(OwnerEnd::Resigned)?;
                    self.has_started = true;
                    return Ok(self.edge.started(started, &mut self.calls));
                }
                request = next_request(&mut self.edge), if E::ANSWERS_WHILE_STARTING => self.requested(request),
                () = sleep(TICK_WHILE_STARTING), if E::ANSWERS_WHILE_STARTING => E::tick(),
            };
            for effect in self.machine.step(self.edge.now(), input) {
                let _ = self.edge.perform(&self.machine, effect, &mut self.calls);
            }
        }
    }

    /// Ends the owner. Returns the reason if it resigned, also meanwhile.
    async fn end(mut self, end: OwnerEnd) -> Option<String> {
        let mut why = match end {
            OwnerEnd::Stopped => None,
            OwnerEnd::Resigned(why) => Some(why),
        };
        let can_save = why.is_none() && self.has_started;
        let first = self.edge.ending(can_save);
        let in_time = match timeout(LAST_CALLS_WITHIN, self.finish(first)).await {
            Ok(resigned) => {
                why = why.or(resigned);
                true
            }
            Err(_) => false,
        };
        self.edge.settled(&self.machine, in_time);
        if can_save && why.is_none() {
            // The next owner folds what was not saved in time.
            let _ = timeout(LAST_CALLS_WITHIN, self.save()).await;
        }
        self.edge.ended(&mut self.machine);
        why
    }

    /// Runs the machine while its ending waits for calls.
    async fn finish(&mut self, first: Option<InputOf<E>>) -> Option<String> {
        let mut inputs = VecDeque::from_iter(first);
        let never = CancellationToken::new();
        loop {
            match self.step(&mut inputs, &never).await {
                Err(OwnerEnd::Resigned(why)) => return Some(why),
                Ok(_) if self.edge.awaits_calls(&self.machine) => {}
                Ok(_) | Err(OwnerEnd::Stopped) => return None,
            }
            let wake = self.until_wake(true);
            inputs.push_back(tokio::select! {
                done = self.calls.next() => self.finished(done),
                () = self.alarm.after(wake) => E::tick(),
            });
        }
    }

    async fn save(&mut self) {
        if let Some(done) = self.calls.written().await {
            let input = self.finished(done);
            self.machine.step(self.edge.now(), input);
        }
        if let Some(write) = self.edge.last_write(&mut self.machine) {
            write.await;
        }
    }
}

async fn next_request<E: Edge>(edge: &mut E) -> E::Request {
    poll_fn(|context| match edge.poll_request(context) {
        Poll::Ready(Some(request)) => Poll::Ready(request),
        // A closed queue has no more requests.
        Poll::Ready(None) | Poll::Pending => Poll::Pending,
    })
    .await
}

#[cfg(test)]
#[path = "shell_tests.rs"]
mod tests;
