//! Threads whose work can wait a moment: merging tables, writing checkpoints. They yield to those that somebody waits for, which on a
//! machine with few cores is most of the tail of every answer.

/// How much less they are worth than others, in the units of `nice`.
const NICENESS: i32 = 10;

/// Makes the threads of this process with that name yield to others. Where that cannot be had, they do not.
#[cfg(target_os = "linux")]
pub(super) fn yields(name: &str) {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let is_named = std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        let number = thread.file_name().to_str().and_then(|number| number.parse().ok());
        if let Some(thread) = number.filter(|_| is_named).and_then(rustix::process::Pid::from_raw)
            && let Err(error) = rustix::process::setpriority_process(Some(thread), NICENESS)
        {
            tracing::debug!(name, %error, "a thread in the background does not yield to others");
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn yields(_: &str) {}
