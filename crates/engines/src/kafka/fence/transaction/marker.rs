//! Writes the marker of a transaction that Kafka has left open.

use std::time::Instant;

use kafka_protocol::ResponseError as Code;
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{ProducerId, WriteTxnMarkersRequest};
use kafka_protocol::protocol::Request as _;

use super::{FencedProducer, MOVING_PAUSE};
use crate::kafka::client::cluster::ANSWER_MAX;
use crate::kafka::coordinator::TransactionOutcome;
use crate::kafka::known_topics::TopicPartition;
use crate::kafka::outcome;

/// Why the marker of an earlier transaction could not be written.
pub(in crate::kafka::fence) enum MarkerError {
    Fenced,
    /// The broker does not support the request, or the ACLs do not allow it.
    NotAllowed(String),
    NotNow(String),
    /// The leader may have written the marker.
    Unknown(String),
}

impl FencedProducer {
    /// Writes the marker of a transaction that the coordinator has finished without it. The marker has the fence's current epoch, so the
    /// leader rejects it if a newer fence, or this fence under a later epoch, has written since.
    pub(in crate::kafka::fence) async fn write_marker(
        &mut self,
        (topic, partition): &TopicPartition,
        outcome: TransactionOutcome,
        coordinator_epoch: i32,
        deadline: Instant,
    ) -> Result<(), MarkerError> {
        let Some(leader) = self.context.cluster.leader(topic.name(), partition.index) else {
            return Err(MarkerError::NotNow("the partition has no leader".to_owned()));
        };
        let place = WritableTxnMarkerTopic::default()
            .with_name(topic.wire_name())
            .with_partition_indexes(vec![partition.index as i32]);
        let marker = WritableTxnMarker::default()
            .with_producer_id(ProducerId(self.producer_id))
            .with_producer_epoch(self.epoch)
            .with_transaction_result(outcome == TransactionOutcome::Committed)
            .with_coordinator_epoch(coordinator_epoch)
            .with_topics(vec![place]);
        let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
        let connection = self.links.to(&self.context.cluster, leader).await;
        let connection = connection.map_err(|error| MarkerError::NotNow(error.to_string()))?;
        if !connection.supports(WriteTxnMarkersRequest::KEY) {
            return Err(MarkerError::NotAllowed("the broker does not support WriteTxnMarkers".to_owned()));
        }
        let left = deadline.saturating_duration_since(Instant::now()).clamp(MOVING_PAUSE, ANSWER_MAX);
        let answer = connection.call(&request, left).await.map_err(|error| match error.may_have_been_received() {
            true => MarkerError::Unknown(error.to_string()),
            false => MarkerError::NotNow(error.to_string()),
        })?;
        let topics = answer.markers.iter().flat_map(|marker| &marker.topics);
        let Some(found) = topics.flat_map(|topic| &topic.partitions).next() else {
            return Err(MarkerError::Unknown("the answer lacks the partition".to_owned()));
        };
        match Code::try_from_code(found.error_code) {
            None => Ok(()),
            // A later coordinator has written a marker since the leader was asked.
            Some(code @ Code::TransactionCoordinatorFenced) => Err(MarkerError::NotNow(code.to_string())),
            Some(code) if outcome::is_fenced(code) => Err(MarkerError::Fenced),
            Some(code) if outcome::is_refused_for_good(code) => Err(MarkerError::NotAllowed(code.to_string())),
            Some(code) => {
                self.context.cluster.refresh(topic.name()).await;
                Err(match outcome::may_be_written(code) {
                    true => MarkerError::Unknown(code.to_string()),
                    false => MarkerError::NotNow(code.to_string()),
                })
            }
        }
    }
}
