//! The load of this process: its part of the machine's CPU and memory, sampled at most once per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The minimum interval between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Samples the process's part of the machine.
pub(super) struct LoadSampler {
    last: Mutex<LoadSample>,
}

#[derive(Clone, Copy)]
struct LoadSample {
    at: Instant,
    cpu_time: Duration,
    cpu: f32,
    memory: f32,
}

impl LoadSampler {
    pub(super) fn new() -> Self {
        let last =
            LoadSample { at: Instant::now(), cpu_time: cpu_time(), cpu: 0.0, memory: memory_part().unwrap_or(0.0) };
        Self { last: Mutex::new(last) }
    }

    /// `(cpu, memory)`, each from 0 to 1, at most 1 s old.
    pub(super) fn parts(&self) -> (f32, f32) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = last.at.elapsed();
        if elapsed >= SAMPLE_EVERY {
            let spent = cpu_time();
            let processors = std::thread::available_parallelism().map_or(1, usize::from) as f32;
            let cpu = spent.saturating_sub(last.cpu_time).as_secs_f32() / elapsed.as_secs_f32() / processors;
            let memory = memory_part().unwrap_or(last.memory);
            *last = LoadSample { at: last.at + elapsed, cpu_time: spent, cpu: cpu.clamp(0.0, 1.0), memory };
        }
        (last.cpu, last.memory)
    }
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// Resident memory as a part of the memory of the machine or container. `None`: the system does not report it.
fn memory_part() -> Option<f32> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let resident = kilobytes(&read("/proc/self/status")?, "VmRSS:")?;
    let machine = kilobytes(&read("/proc/meminfo")?, "MemTotal:")?;
    // The memory limit of the container, if it has one.
    let container = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse::<u64>().ok());
    let total = machine.min(container.map_or(u64::MAX, |bytes| bytes >> 10)).max(1);
    Some((resident as f32 / total as f32).clamp(0.0, 1.0))
}

/// The number after `name` in a file of `/proc`.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_a_part_of_the_machine() {
        let memory = memory_part().unwrap();
        assert!(memory > 0.0 && memory < 1.0, "{memory}");
        let (cpu, memory) = LoadSampler::new().parts();
        assert!((0.0..=1.0).contains(&cpu) && memory > 0.0);
    }

    #[test]
    fn numbers_are_found_by_their_names() {
        let text = "Name:\tx\nVmRSS:\t  1234 kB\n";
        assert_eq!(kilobytes(text, "VmRSS:"), Some(1234));
        assert_eq!(kilobytes(text, "VmSize:"), None);
        assert_eq!(kilobytes("VmRSS: many", "VmRSS:"), None);
    }
}
