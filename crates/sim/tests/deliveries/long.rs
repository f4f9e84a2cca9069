//! Long times, simulated quickly: an hour of a failing key, days of a dead endpoint, a crash at any moment.

use super::scene::{Scene, ordered};
use whimbrel_dispatch::window::WindowLimits;
use whimbrel_model::subscription::{OnExhausted, RetryPolicy};
use whimbrel_sim::deliveries::world::RunSettings;

const HOUR: i64 = 3_600_000;
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// The time between two messages of a key.
const EVERY_MS: i64 = 500;

fn small() -> RunSettings {
    RunSettings {
        on_exhausted: OnExhausted::Block,
        retry: RetryPolicy::default(),
        limits: WindowLimits { body_bytes: 64 << 10, parked_bytes: 64 << 10 },
        ..ordered()
    }
}

/// Runs an hour. Returns the average delay of messages of all keys but the first, and the maximum bytes in memory.
fn an_hour(with_failing_key: bool) -> (Scene, f64, usize) {
    let mut scene = Scene::with_partitions(small(), 3);
    scene.world.endpoint.slowest_ms = 20;
    if with_failing_key {
        scene.bad_key("a", HOUR);
    }
    let mut most = 0;
    for _ in 0..HOUR / EVERY_MS {
        scene.publish(&KEYS);
        scene.wait(0, EVERY_MS);
        let window = &scene.world.nodes[0].as_ref().unwrap().line().window;
        let saved: usize = scene.world.store.rows().values().map(|row| row.state.len()).sum();
        most = most.max(window.body_bytes() + window.parked_bytes() + saved);
    }
    let others = scene.world.truth.messages.iter().filter(|message| message.key.as_deref() != Some(b"a"));
    let delays: Vec<i64> =
        others.map(|message| message.taken_at.expect("it was taken") - message.published_at).collect();
    let average = delays.iter().sum::<i64>() as f64 / delays.len() as f64;
    (scene, average, most)
}

#[test]
fn an_hour_of_one_failing_key_of_five_does_not_delay_the_others_and_takes_little_memory() {
    let (_, usual, _) = an_hour(false);
    let (mut scene, average, most) = an_hour(true);
    assert!(average <= usual * 1.1 + 0.5, "{average} ms instead of {usual} ms");
    // 7 200 messages wait behind the key. Each takes two bytes in the window and in the saved progress; their bodies are not in memory.
    assert!(most < 64 << 10, "{most} bytes");
    let waiting = scene.world.nodes[0].as_ref().unwrap().line().window.parked();
    assert_eq!(waiting, (1, (HOUR / EVERY_MS) as u64));
    // The endpoint accepts the key again: all messages arrive in order, which every step checks.
    scene.wait(0, HOUR);
    assert!(scene.taken().iter().all(|taken| *taken == 1));
    assert_eq!(scene.world.nodes[0].as_ref().unwrap().line().window.parked(), (0, 0));
}

#[test]
fn when_as_much_is_parked_as_allowed_reading_waits_and_resumes_by_itself() {
    let limits = WindowLimits { body_bytes: 64 << 10, parked_bytes: 4 << 10 };
    let mut scene = Scene::new(RunSettings { limits, ..small() });
    scene.world.endpoint.down_until = scene.world.time + 60_000;
    let keys: Vec<String> = (0..2_000).map(|key| format!("key{key}")).collect();
    scene.publish(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    scene.wait(0, 30_000);
    let window = &scene.world.nodes[0].as_ref().unwrap().line().window;
    assert!(window.is_full());
    assert!(window.parked().1 < 1_000, "{:?}", window.parked());
    scene.wait(0, 10 * HOUR);
    assert!(scene.taken().iter().all(|taken| *taken == 1));
}

#[test]
fn days_of_a_dead_endpoint_leave_dead_letters_and_nothing_else() {
    let mut scene = Scene::new(RunSettings { retry: RetryPolicy::default(), ..ordered() });
    scene.world.endpoint.down_until = scene.world.time + 72 * HOUR;
    for _ in 0..36 {
        scene.publish(&KEYS);
        scene.wait(0, 2 * HOUR);
    }
    // Each message has six attempts over about an hour, one message of a key after the other.
    assert_eq!((scene.world.truth.buried, scene.world.calls), (36 * 5, 36 * 5 * 6));
    scene.publish(&KEYS);
    scene.wait(0, HOUR);
    assert_eq!(scene.world.truth.taken, 5);
    assert_eq!(scene.watermark(0, 0), 37 * 5);
}

#[test]
fn after_a_crash_at_most_the_window_and_a_second_of_progress_is_repeated() {
    const PER_MS: i64 = 10;
    for crash_after in [37, 450, 990, 1_001, 1_503, 2_222] {
        let mut scene = Scene::with_partitions(small(), 3);
        scene.world.endpoint.slowest_ms = 20;
        let began = scene.world.time;
        while scene.world.time < began + crash_after {
            let key = KEYS[(scene.world.time % 5) as usize];
            scene.publish(&[key]);
            scene.wait(0, PER_MS);
        }
        scene.fail_over();
        scene.wait(1, 10_000);
        let again: u32 = scene.taken().iter().map(|taken| taken - 1).sum();
        let most = scene.world.settings.concurrency as i64 + 1_000 / PER_MS + 1;
        assert!(i64::from(again) <= most, "{again} repeated after a crash at {crash_after} ms");
    }
}
