//! A lease of etcd as its holder may rely on it: by the holder's own clock, and ending before etcd's lease ends.
//!
//! etcd counts the duration of a lease from the receipt of a keep-alive, which is after its sending. So until the send time plus that
//! duration, less a margin for clock drift, etcd gives the keys under the lease to no other member. If that moment passes without another
//! answer, the session is lost for good, even if etcd still has the lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::EtcdConnection;

/// The part of a lease's duration that is left unused, for clocks that run at different speeds.
const MARGIN_PARTS: u32 = 8;
/// Keep-alives per duration of a lease.
const KEEP_ALIVES_PER_LEASE: u32 = 5;
/// The delay after a failed keep-alive.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A lease that is kept alive until it is dropped, ended or lost.
pub(super) struct LeaseSession {
    pub lease: i64,
    pub standing: Arc<LeaseValidity>,
    connection: EtcdConnection,
    _keep_alive: DropGuard,
}

/// The time until which the session is valid.
pub(super) struct LeaseValidity {
    until: Mutex<LeaseState>,
    /// Notifies waiters of the loss.
    loss_signal: watch::Sender<()>,
}

enum LeaseState {
    Stands(Instant),
    Lost(String),
}

impl LeaseSession {
    /// Requests a lease from etcd and keeps it alive from now on.
    pub async fn begin(connection: EtcdConnection) -> Result<Self, tonic::Status> {
        let sent = Instant::now();
        let (lease, lasts) = connection.grant(connection.settings().session).await?;
        let standing = Arc::new(LeaseValidity::new(sent, lasts));
        let ended = CancellationToken::new();
        let keeping = keep_alive(connection.clone(), lease, lasts, standing.clone());
        tokio::spawn(ended.clone().run_until_cancelled_owned(keeping));
        Ok(Self { lease, standing, connection, _keep_alive: ended.drop_guard() })
    }

    /// Ends the session. etcd deletes all keys under the lease.
    pub async fn end(&self) {
        self.standing.lose("the member has left");
        if let Err(status) = self.connection.revoke(self.lease).await {
            tracing::debug!(%status, "cannot revoke the lease; etcd expires it");
        }
    }
}

/// Keeps the lease alive until it is lost.
async fn keep_alive(connection: EtcdConnection, lease: i64, lasts: Duration, standing: Arc<LeaseValidity>) {
    let every = lasts / KEEP_ALIVES_PER_LEASE;
    let mut next = Instant::now() + every;
    loop {
        tokio::select! {
            () = sleep_until(next) => {}
            _ = standing.lost() => break,
        }
        let sent = Instant::now();
        let answer = tokio::select! {
            answer = connection.keep_alive(lease, every) => answer,
            _ = standing.lost() => break,
        };
        match answer {
            Ok(Duration::ZERO) => standing.lose("etcd has ended the lease"),
            Ok(lasts) => {
                standing.renew(sent, lasts);
                next = sent + every;
            }
            Err(status) => {
                tracing::debug!(%status, "a keep-alive to etcd failed");
                next = Instant::now() + RETRY_AFTER;
            }
        }
    }
    // The lease may still be valid by etcd's clock: revoke it, so that other members need not wait for its end.
    let _ = connection.revoke(lease).await;
}

impl LeaseValidity {
    fn new(sent: Instant, lasts: Duration) -> Self {
        Self { until: Mutex::new(LeaseState::Stands(certain_until(sent, lasts))), loss_signal: watch::Sender::new(()) }
    }

    fn until(&self) -> MutexGuard<'_, LeaseState> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares the clock under the lock: after a caller has seen the session lost, no caller sees it valid again.
    pub fn check(&self) -> Result<(), String> {
        self.valid_until().map(drop)
    }

    fn valid_until(&self) -> Result<Instant, String> {
        let mut until = self.until();
        match &*until {
            LeaseState::Lost(reason) => Err(reason.clone()),
            LeaseState::Stands(moment) if Instant::now() < *moment => Ok(*moment),
            LeaseState::Stands(_) => {
                let reason = "etcd could not be reached in time".to_owned();
                *until = LeaseState::Lost(reason.clone());
                drop(until);
                self.loss_signal.send_replace(());
                Err(reason)
            }
        }
    }

    /// Applies an answer to a keep-alive that was sent at `sent`. An answer after the loss of the session changes nothing.
    fn renew(&self, sent: Instant, lasts: Duration) {
        if self.valid_until().is_err() {
            return;
        }
        let mut until = self.until();
        if let LeaseState::Stands(moment) = &mut *until {
            // Every check in between found the session valid, or has marked it lost.
            *moment = (*moment).max(certain_until(sent, lasts));
        }
    }

    pub fn lose(&self, reason: &str) {
        let mut until = self.until();
        if matches!(*until, LeaseState::Stands(_)) {
            *until = LeaseState::Lost(reason.to_owned());
            drop(until);
            self.loss_signal.send_replace(());
        }
    }

    pub async fn lost(&self) -> String {
        let mut loss_signal = self.loss_signal.subscribe();
        loop {
            match self.valid_until() {
                Err(reason) => return reason,
                Ok(moment) => tokio::select! {
                    () = sleep_until(moment) => {}
                    _ = loss_signal.changed() => {}
                },
            }
        }
    }
}

fn certain_until(sent: Instant, lasts: Duration) -> Instant {
    sent + lasts - lasts / MARGIN_PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(8);

    async fn wait(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_lost_before_the_lease_can_end() {
        let standing = LeaseValidity::new(Instant::now(), LASTS);
        wait(6).await;
        assert_eq!(standing.check(), Ok(()));
        wait(1).await;
        assert!(standing.check().is_err(), "etcd may have ended it a second later");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_from_when_the_keep_alive_was_sent() {
        let standing = LeaseValidity::new(Instant::now(), LASTS);
        wait(2).await;
        let sent = Instant::now();
        wait(4).await;
        standing.renew(sent, LASTS);
        wait(2).await;
        assert_eq!(standing.check(), Ok(()));
        wait(1).await;
        assert!(standing.check().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_keep_alive_answer_does_not_restore_a_lost_session() {
        let standing = LeaseValidity::new(Instant::now(), LASTS);
        wait(1).await;
        let sent = Instant::now();
        wait(6).await;
        standing.renew(sent, LASTS);
        assert!(standing.check().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_alone_ends_a_wait_for_the_loss() {
        let standing = LeaseValidity::new(Instant::now(), LASTS);
        let began = Instant::now();
        standing.lost().await;
        assert_eq!(began.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_extends_a_wait_for_the_loss() {
        let standing = LeaseValidity::new(Instant::now(), LASTS);
        let began = Instant::now();
        let renewals = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            standing.renew(Instant::now(), LASTS);
        };
        tokio::join!(renewals, standing.lost());
        assert_eq!(began.elapsed(), Duration::from_secs(12));
    }
}
