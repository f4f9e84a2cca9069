//! A lease of etcd as its holder may rely upon it: by the holder's own clock, and ending before etcd's.
//!
//! etcd keeps a lease for its time from when it took the keep-alive, which is after the keep-alive was sent. So until the
//! sending plus that time, less a margin for clocks that do not run alike, nobody else can have what is under the lease. When
//! that moment passes without another answer the session is lost for good, also where etcd would still have it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::EtcdConnection;

/// The part of a lease's time that is left unused, for clocks that run at different speeds.
const MARGIN_PARTS: u32 = 8;
/// Keep-alives in the time of one lease.
const KEEP_ALIVES_PER_LEASE: u32 = 5;
/// How long after a keep-alive that failed the next is tried.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A lease that is kept alive until it is dropped, ended or lost.
pub(super) struct Session {
    pub lease: i64,
    standing: Arc<Standing>,
    connection: EtcdConnection,
    _keep_alive: DropGuard,
}

/// Until when the session stands.
struct Standing {
    until: Mutex<Until>,
    /// Wakes who waits for the loss.
    told: watch::Sender<()>,
}

enum Until {
    Stands(Instant),
    Lost(String),
}

impl Session {
    /// Asks etcd for a lease and keeps it alive from now on.
    pub async fn begin(connection: EtcdConnection) -> Result<Self, tonic::Status> {
        let sent = Instant::now();
        let (lease, lasts) = connection.grant(connection.settings().session).await?;
        let standing = Arc::new(Standing::new(sent, lasts));
        let ended = CancellationToken::new();
        let keeping = keep_alive(connection.clone(), lease, lasts, standing.clone());
        tokio::spawn(ended.clone().run_until_cancelled_owned(keeping));
        Ok(Self { lease, standing, connection, _keep_alive: ended.drop_guard() })
    }

    pub fn stands(&self) -> bool {
        self.standing.check().is_ok()
    }

    pub fn check(&self) -> Result<(), String> {
        self.standing.check()
    }

    pub fn lose(&self, reason: &str) {
        self.standing.lose(reason);
    }

    pub async fn lost(&self) -> String {
        self.standing.lost().await
    }

    /// Ends the session; etcd lets go of everything under it.
    pub async fn end(&self) {
        self.standing.lose("the membership was left");
        if let Err(status) = self.connection.revoke(self.lease).await {
            tracing::debug!(%status, "etcd lets go of the session when its time is over");
        }
    }
}

/// Keeps the lease alive until it is lost.
async fn keep_alive(connection: EtcdConnection, lease: i64, lasts: Duration, standing: Arc<Standing>) {
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
                tracing::debug!(%status, "a keep-alive did not get through to etcd");
                next = Instant::now() + RETRY_AFTER;
            }
        }
    }
    // Who was lost by its own clock may still be there by etcd's: others need not wait for that.
    let _ = connection.revoke(lease).await;
}

impl Standing {
    fn new(sent: Instant, lasts: Duration) -> Self {
        Self { until: Mutex::new(Until::Stands(certain_until(sent, lasts))), told: watch::Sender::new(()) }
    }

    fn until(&self) -> MutexGuard<'_, Until> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the clock under the lock: who has seen the session lost never sees it stand again.
    fn check(&self) -> Result<(), String> {
        self.look().map(drop)
    }

    fn look(&self) -> Result<Instant, String> {
        let mut until = self.until();
        match &*until {
            Until::Lost(reason) => Err(reason.clone()),
            Until::Stands(moment) if Instant::now() < *moment => Ok(*moment),
            Until::Stands(_) => {
                let reason = "etcd could not be reached in time".to_owned();
                *until = Until::Lost(reason.clone());
                drop(until);
                self.told.send_replace(());
                Err(reason)
            }
        }
    }

    /// An answer to a keep-alive that was sent at that time. One that comes after the session was lost changes nothing.
    fn renew(&self, sent: Instant, lasts: Duration) {
        if self.look().is_err() {
            return;
        }
        let mut until = self.until();
        if let Until::Stands(moment) = &mut *until {
            // Whoever looked in between saw it stand, or has marked it lost.
            *moment = (*moment).max(certain_until(sent, lasts));
        }
    }

    fn lose(&self, reason: &str) {
        let mut until = self.until();
        if matches!(*until, Until::Stands(_)) {
            *until = Until::Lost(reason.to_owned());
            drop(until);
            self.told.send_replace(());
        }
    }

    async fn lost(&self) -> String {
        let mut told = self.told.subscribe();
        loop {
            match self.look() {
                Err(reason) => return reason,
                Ok(moment) => tokio::select! {
                    () = sleep_until(moment) => {}
                    _ = told.changed() => {}
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
        let standing = Standing::new(Instant::now(), LASTS);
        wait(6).await;
        assert_eq!(standing.check(), Ok(()));
        wait(1).await;
        assert!(standing.check().is_err(), "etcd may have ended it a second later");
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_from_when_the_keep_alive_was_sent() {
        let standing = Standing::new(Instant::now(), LASTS);
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
    async fn an_answer_that_comes_too_late_does_not_bring_a_session_back() {
        let standing = Standing::new(Instant::now(), LASTS);
        wait(1).await;
        let sent = Instant::now();
        wait(6).await;
        standing.renew(sent, LASTS);
        assert!(standing.check().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_loss_is_told_by_the_clock_alone() {
        let standing = Standing::new(Instant::now(), LASTS);
        let began = Instant::now();
        standing.lost().await;
        assert_eq!(began.elapsed(), Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_loss_of_a_session_that_is_renewed_waits_on() {
        let standing = Standing::new(Instant::now(), LASTS);
        let began = Instant::now();
        let renewals = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            standing.renew(Instant::now(), LASTS);
        };
        tokio::join!(renewals, standing.lost());
        assert_eq!(began.elapsed(), Duration::from_secs(12));
    }
}
