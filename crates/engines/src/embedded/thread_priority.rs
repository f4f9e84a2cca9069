//! Lowers the priority of background threads, which merge tables and write checkpoints. On a machine with few cores, these threads would
//! cause most of the tail latency of requests.

/// The lower priority, in the units of `nice`.
const NICENESS: i32 = 10;

/// Lowers the priority of the threads of this process with that name. A failure is ignored.
#[cfg(target_os = "linux")]
pub(super) fn lower_priority(name: &str) {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return };
    for thread in threads.flatten() {
        let is_named = std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        let number = thread.file_name().to_str().and_then(|number| number.parse().ok());
        if let Some(thread) = number.filter(|_| is_named).and_then(rustix::process::Pid::from_raw)
            && let Err(error) = rustix::process::setpriority_process(Some(thread), NICENESS)
        {
            tracing::debug!(name, %error, "cannot lower the priority of a background thread");
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn lower_priority(_: &str) {}
