//! An alarm with sub-millisecond precision. The runtime's own timer counts whole milliseconds and rounds up; on an idle machine that
//! rounding would be most of a hold's lateness.

use std::io;
use std::time::Duration;

#[cfg(target_os = "linux")]
mod precise {
    use super::{Duration, io};
    use std::os::fd::OwnedFd;

    use rustix::io::read;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    pub struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        /// Must be called within a runtime.
        pub fn new() -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            // SAFETY: `AsyncFd` owns the descriptor; the descriptor is neither closed nor replaced before `AsyncFd` is dropped.
            Ok(Self(unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE)? }))
        }

        pub fn set(&mut self, after: Duration) -> io::Result<()> {
            // A value of zero would disarm the timer.
            let after = after.max(Duration::from_nanos(1));
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() };
            let once = Itimerspec { it_interval: zero, it_value: value };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &once)?;
            Ok(())
        }

        pub async fn rings(&mut self) -> io::Result<()> {
            loop {
                let mut ready = self.0.readable().await?;
                let mut count = [0; 8];
                match ready.try_io(|timer| Ok(read(timer.get_ref(), &mut count)?)) {
                    Ok(rung) => return rung.map(drop),
                    // The timer was set again before this read.
                    Err(_) => continue,
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod precise {
    use super::{Duration, io};

    pub struct Timer(tokio::time::Instant);

    impl Timer {
        pub fn new() -> io::Result<Self> {
            Ok(Self(tokio::time::Instant::now()))
        }

        pub fn set(&mut self, after: Duration) -> io::Result<()> {
            self.0 = tokio::time::Instant::now() + after;
            Ok(())
        }

        pub async fn rings(&mut self) -> io::Result<()> {
            tokio::time::sleep_until(self.0).await;
            Ok(())
        }
    }
}

/// Rings once for each time it is set.
pub(super) struct Alarm {
    timer: precise::Timer,
}

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { timer: precise::Timer::new()? })
    }

    /// Returns after `wake`. Dropping the future cancels the alarm.
    pub(super) async fn after(&mut self, wake: Duration) {
        if self.timer.set(wake).is_err() || self.timer.rings().await.is_err() {
            tokio::time::sleep(wake).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn an_alarm_never_rings_early_and_can_be_set_again() {
        let mut alarm = Alarm::new().unwrap();
        for micros in [0, 300, 2_700] {
            let (wake, began) = (Duration::from_micros(micros), Instant::now());
            alarm.after(wake).await;
            assert!(began.elapsed() >= wake);
        }
        let cancelled = alarm.after(Duration::from_micros(1));
        drop(cancelled);
        let (wake, began) = (Duration::from_millis(5), Instant::now());
        alarm.after(wake).await;
        assert!(began.elapsed() >= wake, "a cancelled alarm does not ring for the next one");
    }
}
