//! The answer to something submitted, to be waited for.
//!
//! A group commit answers many at once, and waking each of them from the journal's thread is what costs: each wake of a task
//! from outside its thread is a lock and a system call. So of all who wait on one thread only the first is woken from here; it
//! wakes the others, which on their own thread is cheap. One that is dropped before it could do so does it then.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::Outcome;

/// Resolves when the work's frame is durable, or when it is certain or unknown that it is not.
pub struct Ticket(Arc<Pending>);

/// The other end of a [`Ticket`].
pub(crate) struct Pending(Mutex<State>);

enum State {
    Waiting {
        waker: Option<Waker>,
        thread: u64,
    },
    /// With a waker that is still to be woken, and the others that this one wakes.
    Done {
        outcome: Outcome,
        waker: Option<Waker>,
        others: Vec<Arc<Pending>>,
    },
    Taken,
}

thread_local! {
    static THREAD_NUMBER: Cell<u64> = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

impl Pending {
    pub fn new() -> (Ticket, Arc<Pending>) {
        let pending = Arc::new(Pending(Mutex::new(State::Waiting { waker: None, thread: 0 })));
        (Ticket(pending.clone()), pending)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the outcome and says on which thread somebody waits for it, if anybody does.
    fn fulfil(&self, outcome: Outcome) -> Option<u64> {
        let mut state = self.lock();
        let State::Waiting { waker, thread } = &mut *state else { return None };
        let (waker, thread) = (waker.take(), *thread);
        let awaited = waker.is_some();
        *state = State::Done { outcome, waker, others: Vec::new() };
        awaited.then_some(thread)
    }

    fn wake(&self) {
        let waker = match &mut *self.lock() {
            State::Done { waker, .. } => waker.take(),
            _ => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Makes this one wake the others; gives them back where it has been polled or dropped already.
    fn lead(&self, led: Vec<Arc<Pending>>) -> Option<Vec<Arc<Pending>>> {
        match &mut *self.lock() {
            State::Done { others, .. } => {
                *others = led;
                None
            }
            _ => Some(led),
        }
    }
}

/// Answers a whole group.
pub(crate) fn answer_all(group: impl IntoIterator<Item = (Arc<Pending>, Outcome)>) {
    let mut by_thread: Vec<(u64, Vec<Arc<Pending>>)> = Vec::new();
    for (pending, outcome) in group {
        let Some(thread) = pending.fulfil(outcome) else { continue };
        match by_thread.iter_mut().find(|(other, _)| *other == thread) {
            Some((_, waiting)) => waiting.push(pending),
            None => by_thread.push((thread, vec![pending])),
        }
    }
    for (_, mut waiting) in by_thread {
        let leader = waiting.swap_remove(0);
        if let Some(left_over) = leader.lead(waiting) {
            left_over.iter().for_each(|pending| pending.wake());
        }
        leader.wake();
    }
}

impl Ticket {
    /// Waits on this thread, for callers that have no executor.
    pub fn wait(self) -> Outcome {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut ticket = std::pin::pin!(self);
        loop {
            match ticket.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => return outcome,
                Poll::Pending => thread::park(),
            }
        }
    }
}

impl Future for Ticket {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.0.lock();
        match &mut *state {
            State::Waiting { waker, thread } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                *thread = THREAD_NUMBER.get();
                Poll::Pending
            }
            State::Done { .. } => {
                let State::Done { outcome, others, .. } = std::mem::replace(&mut *state, State::Taken) else {
                    unreachable!("it was done a line before");
                };
                drop(state);
                others.iter().for_each(|pending| pending.wake());
                Poll::Ready(outcome)
            }
            State::Taken => panic!("a ticket was polled after it had given its outcome"),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let others = match std::mem::replace(&mut *self.0.lock(), State::Taken) {
            State::Done { others, .. } => others,
            _ => return,
        };
        others.iter().for_each(|pending| pending.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct CountingWaker(AtomicU64);
    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn outcome(number: u64) -> Outcome {
        Outcome::FenceOpened(number)
    }

    /// Three tickets polled on this thread and answered together, with the wakes that each got.
    fn three_answered() -> (Vec<Pin<Box<Ticket>>>, Vec<Arc<CountingWaker>>) {
        let (mut tickets, pending): (Vec<_>, Vec<_>) =
            (0..3).map(|_| Pending::new()).map(|(ticket, pending)| (Box::pin(ticket), pending)).unzip();
        let wakers: Vec<_> = (0..3).map(|_| Arc::new(CountingWaker(AtomicU64::new(0)))).collect();
        for (ticket, waker) in tickets.iter_mut().zip(&wakers) {
            let waker = Waker::from(waker.clone());
            assert!(ticket.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        answer_all(pending.into_iter().zip((0..3).map(outcome)));
        (tickets, wakers)
    }

    fn wakes(wakers: &[Arc<CountingWaker>]) -> Vec<u64> {
        wakers.iter().map(|waker| waker.0.load(Ordering::SeqCst)).collect()
    }

    #[test]
    fn only_the_first_of_a_thread_is_woken_from_outside_and_it_wakes_the_others() {
        let (mut tickets, wakers) = three_answered();
        assert_eq!(wakes(&wakers), [1, 0, 0]);
        let polled = tickets[0].as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(outcome(0)));
        assert_eq!(wakes(&wakers), [1, 1, 1]);
        let polled = tickets[2].as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(outcome(2)));
    }

    #[test]
    fn a_first_one_that_is_dropped_still_wakes_the_others() {
        let (mut tickets, wakers) = three_answered();
        drop(tickets.remove(0));
        assert_eq!(wakes(&wakers), [1, 1, 1]);
    }

    #[test]
    fn a_ticket_answered_before_it_is_polled_is_ready() {
        let (ticket, pending) = Pending::new();
        answer_all([(pending, outcome(7))]);
        assert_eq!(ticket.wait(), outcome(7));
    }

    #[test]
    fn waiting_on_a_thread_is_answered_from_another() {
        let (ticket, pending) = Pending::new();
        let answering = thread::spawn(move || answer_all([(pending, outcome(9))]));
        assert_eq!(ticket.wait(), outcome(9));
        answering.join().unwrap();
    }
}
