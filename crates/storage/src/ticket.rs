//! The future answer to a submitted request.
//!
//! A group commit answers many requests at once. Waking a task from another thread costs a lock and a system call. So the journal thread
//! wakes only the first waiter of each thread. That waiter wakes the others on its own thread, which is cheap. If it is dropped before it
//! could do so, its drop wakes them.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::LogReply;

/// Resolves when the frame of the request is durable, or has failed, or has an unknown outcome.
pub struct LogTicket(Arc<TicketSlot>);

/// The other end of a [`LogTicket`].
pub(crate) struct TicketSlot(Mutex<TicketState>);

enum TicketState {
    Waiting {
        waker: Option<Waker>,
        thread: u64,
    },
    /// The outcome, the waker if it is still to be called, and the other waiters that this one must wake.
    Done {
        outcome: LogReply,
        waker: Option<Waker>,
        others: Vec<Arc<TicketSlot>>,
    },
    Taken,
}

thread_local! {
    static THREAD_NUMBER: Cell<u64> = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

impl TicketSlot {
    pub fn new() -> (LogTicket, Arc<TicketSlot>) {
        let pending = Arc::new(TicketSlot(Mutex::new(TicketState::Waiting { waker: None, thread: 0 })));
        (LogTicket(pending.clone()), pending)
    }

    fn lock(&self) -> MutexGuard<'_, TicketState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the outcome. Returns the thread of the waiter if there is one.
    fn fulfil(&self, outcome: LogReply) -> Option<u64> {
        let mut state = self.lock();
        let TicketState::Waiting { waker, thread } = &mut *state else { return None };
        let (waker, thread) = (waker.take(), *thread);
        let awaited = waker.is_some();
        *state = TicketState::Done { outcome, waker, others: Vec::new() };
        awaited.then_some(thread)
    }

    fn wake(&self) {
        let waker = match &mut *self.lock() {
            TicketState::Done { waker, .. } => waker.take(),
            _ => None,
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Makes this waiter wake the others. Returns them if it was polled or dropped already.
    fn lead(&self, led: Vec<Arc<TicketSlot>>) -> Option<Vec<Arc<TicketSlot>>> {
        match &mut *self.lock() {
            TicketState::Done { others, .. } => {
                *others = led;
                None
            }
            _ => Some(led),
        }
    }
}

/// Answers all requests of a group.
pub(crate) fn answer_all(group: impl IntoIterator<Item = (Arc<TicketSlot>, LogReply)>) {
    let mut by_thread: Vec<(u64, Vec<Arc<TicketSlot>>)> = Vec::new();
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

impl LogTicket {
    /// Blocks this thread, for callers without an executor.
    pub fn wait(self) -> LogReply {
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

impl Future for LogTicket {
    type Output = LogReply;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LogReply> {
        let mut state = self.0.lock();
        match &mut *state {
            TicketState::Waiting { waker, thread } => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                *thread = THREAD_NUMBER.get();
                Poll::Pending
            }
            TicketState::Done { .. } => {
                let TicketState::Done { outcome, others, .. } = std::mem::replace(&mut *state, TicketState::Taken)
                else {
                    unreachable!("the state was just matched as done");
                };
                drop(state);
                others.iter().for_each(|pending| pending.wake());
                Poll::Ready(outcome)
            }
            TicketState::Taken => panic!("a ticket was polled after it returned its outcome"),
        }
    }
}

impl Drop for LogTicket {
    fn drop(&mut self) {
        let others = match std::mem::replace(&mut *self.0.lock(), TicketState::Taken) {
            TicketState::Done { others, .. } => others,
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

    fn outcome(number: u64) -> LogReply {
        LogReply::FenceOpened(number)
    }

    /// Three tickets, polled on this thread and answered together, with the count of their wakes.
    fn three_answered() -> (Vec<Pin<Box<LogTicket>>>, Vec<Arc<CountingWaker>>) {
        let (mut tickets, pending): (Vec<_>, Vec<_>) =
            (0..3).map(|_| TicketSlot::new()).map(|(ticket, pending)| (Box::pin(ticket), pending)).unzip();
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
    fn only_the_first_waiter_of_a_thread_is_woken_and_it_wakes_the_others() {
        let (mut tickets, wakers) = three_answered();
        assert_eq!(wakes(&wakers), [1, 0, 0]);
        let polled = tickets[0].as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(outcome(0)));
        assert_eq!(wakes(&wakers), [1, 1, 1]);
        let polled = tickets[2].as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(outcome(2)));
    }

    #[test]
    fn a_first_waiter_that_is_dropped_wakes_the_others() {
        let (mut tickets, wakers) = three_answered();
        drop(tickets.remove(0));
        assert_eq!(wakes(&wakers), [1, 1, 1]);
    }

    #[test]
    fn a_ticket_answered_before_it_is_polled_is_ready() {
        let (ticket, pending) = TicketSlot::new();
        answer_all([(pending, outcome(7))]);
        assert_eq!(ticket.wait(), outcome(7));
    }

    #[test]
    fn a_blocking_wait_is_answered_from_another_thread() {
        let (ticket, pending) = TicketSlot::new();
        let answering = thread::spawn(move || answer_all([(pending, outcome(9))]));
        assert_eq!(ticket.wait(), outcome(9));
        answering.join().unwrap();
    }
}
