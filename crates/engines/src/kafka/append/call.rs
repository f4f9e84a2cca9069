//! One call of `append`: collects the results of its records and answers the caller when the last one is settled.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use whimbrel_model::ports::{AppendOutcome, LogError};

/// One call of `append`, answered when its last record is settled.
pub(super) struct AppendCall(Mutex<AppendCallState>);

pub(super) struct AppendCallState {
    outcome: Vec<Option<Result<u64, LogError>>>,
    unsettled: usize,
    answer: Option<oneshot::Sender<AppendOutcome>>,
}

impl AppendCall {
    pub(super) fn new(records: usize) -> (Arc<Self>, oneshot::Receiver<AppendOutcome>) {
        let (answer, answered) = oneshot::channel();
        let outcome = std::iter::repeat_with(|| None).take(records).collect();
        (Arc::new(Self(Mutex::new(AppendCallState { outcome, unsettled: records, answer: Some(answer) }))), answered)
    }

    pub(super) fn settle(&self, indexes: &[u32], settled: Result<u64, LogError>) {
        self.settle_each(indexes, || settled.clone());
    }

    /// The records at these indexes have consecutive offsets.
    pub(super) fn settle_from(&self, indexes: &[u32], base: u64) {
        let mut offsets = base..;
        self.settle_each(indexes, || Ok(offsets.next().unwrap_or(base)));
    }

    pub(super) fn settle_each(&self, indexes: &[u32], mut settled: impl FnMut() -> Result<u64, LogError>) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for index in indexes {
            // After `give_up` there is nothing left to settle.
            let Some(place) = state.outcome.get_mut(*index as usize) else { return };
            *place = Some(settled());
            state.unsettled -= 1;
        }
        if state.unsettled == 0
            && let Some(answer) = state.answer.take()
        {
            // The caller may have stopped waiting: dropping an append does not undo it.
            let _ = answer.send(state.take_outcome());
        }
    }

    /// Returns the known results; unsettled records are reported as `Unknown`.
    pub(super) fn give_up(&self) -> AppendOutcome {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take_outcome()
    }
}

impl AppendCallState {
    pub(super) fn take_outcome(&mut self) -> AppendOutcome {
        let unknown = || {
            Err(LogError::Unknown("Kafka did not acknowledge the record in time; it may have been written".to_owned()))
        };
        std::mem::take(&mut self.outcome).into_iter().map(|settled| settled.unwrap_or_else(unknown)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_is_answered_in_its_own_order_when_the_last_record_is_settled() {
        let (call, answered) = AppendCall::new(3);
        call.settle(&[2], Ok(20));
        call.settle(&[1], Err(LogError::Overloaded("full".to_owned())));
        call.settle_from(&[0], 7);
        assert_eq!(answered.await, Ok(vec![Ok(7), Err(LogError::Overloaded("full".to_owned())), Ok(20)]));
    }

    #[test]
    fn an_abandoned_call_keeps_known_results_and_ignores_late_ones() {
        let (call, _answered) = AppendCall::new(2);
        call.settle(&[0], Ok(1));
        let outcome = call.give_up();
        assert_eq!(outcome[0], Ok(1));
        assert!(matches!(outcome[1], Err(LogError::Unknown(_))));
        call.settle(&[1], Ok(2));
    }
}
