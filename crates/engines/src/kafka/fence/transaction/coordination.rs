//! Requests to the transaction coordinator. They are retried until the coordinator gives a definite answer or the deadline passes.

use std::time::{Duration, Instant};

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::{DescribeTransactionsRequest, DescribeTransactionsResponse, FindCoordinatorRequest};
use kafka_protocol::protocol::{Request, StrBytes};

use super::{CoordinatorError, FenceError, FencedProducer, MOVING_PAUSE, SlowStep, not_now, pause_after};
use crate::kafka::client::cluster::ANSWER_MAX;
use crate::kafka::client::connection::CallError;
use crate::kafka::outcome;

/// The states of `DescribeTransactions` in which the coordinator has no transaction to finish.
const FINISHED_STATES: [&str; 4] = ["Empty", "CompleteCommit", "CompleteAbort", "Dead"];
/// The minimum timeout of the request that looks up leaders at the coordinator.
const LEADERS_MIN: Duration = Duration::from_millis(500);
/// The key type of a transactional id in `FindCoordinator`.
const TRANSACTION_KEY: i8 = 1;

impl FencedProducer {
    /// Looks up the leaders of topics at the coordinator. The coordinator has finished the fence's earlier transactions, so it has the
    /// leaders that got their records and markers. A cached leader that was replaced since may lack those records.
    pub(in crate::kafka::fence) async fn learn_leaders(
        &self,
        topics: &[&str],
        deadline: Instant,
    ) -> Result<(), CallError> {
        let coordinator = self.coordinator.ok_or_else(|| CallError::NotSent("no coordinator".to_owned()))?;
        let connection = self.links.to(&self.context.cluster, coordinator).await?;
        // The coordinator is asked even if it used up the time to finish the transactions.
        let left = deadline.saturating_duration_since(Instant::now()).clamp(LEADERS_MIN, ANSWER_MAX);
        self.context.cluster.learn_leaders_from(&connection, topics, left).await
    }

    /// Waits until the coordinator has finished the fence's last transaction.
    pub(in crate::kafka::fence) async fn wait_until_finished(&mut self, deadline: Instant) -> Result<(), FenceError> {
        let began = Instant::now();
        while !self.has_finished(deadline).await? {
            if Instant::now() >= deadline {
                return Err(not_now(0, "the coordinator has not finished the previous transaction"));
            }
            tokio::time::sleep(pause_after(began.elapsed())).await;
        }
        Ok(())
    }

    /// Whether the coordinator has finished the fence's last transaction. Each of its markers is then replicated, or lost.
    pub(in crate::kafka::fence) async fn has_finished(&mut self, deadline: Instant) -> Result<bool, FenceError> {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![self.transactional_id()]);
        let code_of = |answer: &DescribeTransactionsResponse| {
            answer.transaction_states.first().map_or(0, |state| state.error_code)
        };
        match self.coordinate(&request, code_of, deadline).await {
            Ok(answer) => {
                let state = answer.transaction_states.first().map_or("", |state| state.transaction_state.as_str());
                Ok(FINISHED_STATES.contains(&state))
            }
            // The id has expired: it was not used for a long time.
            Err(CoordinatorError::Code { code: Code::TransactionalIdNotFound, .. }) => Ok(true),
            Err(CoordinatorError::Code { code, .. }) => Err(not_now(0, code)),
            Err(CoordinatorError::Late { why, .. }) => Err(not_now(0, why)),
        }
    }

    /// Repeats a request until the coordinator gives a definite answer or the deadline passes.
    pub(super) async fn coordinate<R: Request>(
        &mut self,
        request: &R,
        code_of: impl Fn(&R::Response) -> i16,
        deadline: Instant,
    ) -> Result<R::Response, CoordinatorError> {
        let mut is_certain = true;
        let began = Instant::now();
        let mut slow = SlowStep::begin("the coordinator");
        loop {
            slow.log(&self.context.transactional_id);
            let left = deadline.saturating_duration_since(Instant::now()).clamp(MOVING_PAUSE, ANSWER_MAX);
            let (why, pause) = match self.call_coordinator(request, left).await {
                Ok(answer) => match Code::try_from_code(code_of(&answer)) {
                    None => return Ok(answer),
                    Some(Code::ConcurrentTransactions) => {
                        (Code::ConcurrentTransactions.to_string(), pause_after(began.elapsed()))
                    }
                    Some(code) if outcome::is_passing(code) => {
                        // A coordinator also answers so if it could not replicate its decision in time, or if it loads its log again
                        // after it wrote the decision: the decision may take effect.
                        is_certain = false;
                        self.needs_new_epoch = true;
                        self.coordinator = None;
                        (code.to_string(), MOVING_PAUSE)
                    }
                    Some(code) => return Err(CoordinatorError::Code { code, is_certain }),
                },
                Err(error) => {
                    let may_have_been_received = error.may_have_been_received();
                    is_certain &= !may_have_been_received;
                    self.needs_new_epoch |= may_have_been_received;
                    self.coordinator = None;
                    (error.to_string(), MOVING_PAUSE)
                }
            };
            if Instant::now() >= deadline {
                return Err(CoordinatorError::Late { why, is_certain });
            }
            slow.why = why;
            tokio::time::sleep(pause).await;
        }
    }

    async fn call_coordinator<R: Request>(&mut self, request: &R, timeout: Duration) -> Result<R::Response, CallError> {
        let coordinator = match self.coordinator {
            Some(coordinator) => coordinator,
            None => self.find_coordinator(timeout).await?,
        };
        let connection = self.links.to(&self.context.cluster, coordinator).await?;
        self.coordinator = Some(coordinator);
        connection.call(request, timeout).await
    }

    async fn find_coordinator(&self, timeout: Duration) -> Result<i32, CallError> {
        let request = FindCoordinatorRequest::default()
            .with_key(StrBytes::from_string(self.context.transactional_id.clone()))
            .with_key_type(TRANSACTION_KEY);
        // Asks another broker than last time: a broker that is cut off from the controllers may name a former coordinator.
        self.context.cluster.prefer_another();
        let answer = self.context.cluster.ask_any(&request, timeout).await;
        // This request changes nothing at the broker.
        let answer = answer.map_err(|error| CallError::NotSent(error.to_string()))?;
        if let Some(code) = Code::try_from_code(answer.error_code) {
            return Err(CallError::NotSent(format!("cannot find the transaction coordinator: {code}")));
        }
        self.context.cluster.learn_broker(answer.node_id.0, &answer.host, answer.port);
        Ok(answer.node_id.0)
    }
}
