//! Steps of the wall clock: shorter and longer than the stepout, forwards, backwards and several. The world checks after every step that no
//! hold fires, and no record is removed, before the true time allows it.

use super::scene::{Scene, quiet};

const SECOND: i64 = 1_000;
const HOUR: i64 = 3_600_000;
const DAY: i64 = 24 * HOUR;
/// The stepout of the scene's nodes.
const STEPOUT: i64 = 60 * SECOND;

fn set_clock(scene: &mut Scene, node: usize, skew_ms: i64) {
    let time = scene.world.time;
    scene.world.nodes[node].set_skew(skew_ms, time);
    scene.wait(node, 0);
}

#[test]
fn holds_accepted_during_or_after_a_short_clock_step_wait_for_their_time() {
    for skew_ms in [DAY, -DAY, 8 * DAY] {
        let mut scene = Scene::new(quiet());
        set_clock(&mut scene, 0, skew_ms);
        scene.accepted(&scene.hold("during", HOUR));
        scene.wait(0, 15 * SECOND);
        scene.accepted(&scene.hold("meanwhile", 0));
        assert_eq!(scene.world.truth.fired, 1, "time continues");
        set_clock(&mut scene, 0, 0);
        scene.accepted(&scene.hold("after", 12 * HOUR));
        scene.wait(0, SECOND);
        assert_eq!(scene.world.truth.fired, 1);
        scene.wait(0, HOUR);
        assert_eq!(scene.world.truth.fired, 2);
        scene.wait(0, 12 * HOUR);
        assert_eq!(scene.world.truth.fired, 3);
    }
}

#[test]
fn a_lasting_step_and_its_correction_are_followed() {
    let mut scene = Scene::new(quiet());
    scene.accepted(&scene.hold("a", HOUR));
    set_clock(&mut scene, 0, DAY);
    scene.wait(0, STEPOUT - 1);
    assert_eq!(scene.world.truth.fired, 0);
    scene.wait(0, 1);
    assert_eq!(scene.world.truth.fired, 1, "the clock was set and kept its time");
    set_clock(&mut scene, 0, 0);
    scene.wait(0, STEPOUT);
    // The owner's clock was a day ahead. It must not continue from there.
    scene.accepted(&scene.hold("b", HOUR));
    scene.wait(0, SECOND);
    assert_eq!(scene.world.truth.fired, 1);
    scene.accepted(&scene.hold("c", SECOND));
    scene.wait(0, SECOND);
    assert_eq!(scene.world.truth.fired, 2, "and the owner does not wait a day");
    scene.wait(0, HOUR);
    assert_eq!(scene.world.truth.fired, 3);
}

#[test]
fn a_clock_that_steps_back_delays_no_hold() {
    let mut scene = Scene::new(quiet());
    scene.accepted(&scene.hold("a", 10 * SECOND));
    set_clock(&mut scene, 0, -DAY);
    scene.wait(0, 10 * SECOND);
    assert_eq!(scene.world.truth.fired, 1);
}

#[test]
fn consecutive_clock_steps_do_not_add_up() {
    let mut scene = Scene::new(quiet());
    scene.accepted(&scene.hold("a", 2 * HOUR));
    for round in 1..=10 {
        set_clock(&mut scene, 0, round * HOUR);
        scene.wait(0, STEPOUT / 2);
        set_clock(&mut scene, 0, 0);
        scene.wait(0, SECOND);
    }
    assert_eq!(scene.world.truth.fired, 0);
}

#[test]
fn a_process_that_starts_during_a_clock_step_uses_the_earlier_time() {
    let mut scene = Scene::new(quiet());
    scene.accepted(&scene.hold("a", HOUR));
    set_clock(&mut scene, 0, DAY);
    scene.world.crash(0);
    scene.take(0);
    scene.wait(0, SECOND);
    assert_eq!(scene.world.truth.fired, 0);
}

#[test]
fn a_hold_that_fired_during_a_lasting_step_does_not_fire_again() {
    let mut scene = Scene::new(quiet());
    let hold = scene.accepted_hold("a", HOUR);
    set_clock(&mut scene, 0, DAY);
    scene.wait(0, STEPOUT);
    assert_eq!(scene.world.truth.fired, 1);
    set_clock(&mut scene, 0, 0);
    scene.wait(0, STEPOUT);
    scene.append(&hold);
    scene.run(0);
    scene.wait(0, 2 * HOUR);
    assert_eq!(scene.world.truth.fired, 1);
}
