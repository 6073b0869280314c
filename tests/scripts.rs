//! The counting of `scripts/test`: what it says must be what happened.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;

/// Runs a bash script with the functions of `scripts/lib/stages.sh`; answers output and status.
fn bash(name: &str, script: &str) -> (String, i32) {
    let logs = format!("{}/stages-{name}", env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(&logs).unwrap();
    let output = Command::new("bash")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("logs", logs)
        .args([
            "-c",
            "set -euo pipefail; . scripts/lib/stages.sh; eval \"$1\"",
            "-",
        ])
        .arg(script)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code().unwrap())
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

#[test]
fn all_runners_are_summed_up() {
    let (text, status) = bash(
        "sum",
        r#"trap summary EXIT
        cargo_says() {
          echo 'running 3 tests'
          echo 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s'
          echo 'test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.0s'
          echo 'test result: ok. 14 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.1s'
        }
        ctest_says() {
          echo '100% tests passed, 0 tests failed out of 12'
          echo 'The following tests did not run:'
          echo '  3 - Pool.Waits (Skipped)'
        }
        stage rust count_cargo cargo_says
        stage cpp count_ctest ctest_says
        stage one count_one true"#,
    );
    assert_eq!(last_line(&text), "29 passed, 0 failed", "{text}");
    assert_eq!(status, 0);
}

#[test]
fn failures_are_counted_and_do_not_stop_the_rest() {
    let (text, status) = bash(
        "fail",
        r#"trap summary EXIT
        cargo_says() {
          echo 'test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out'
          return 101
        }
        ctest_says() { echo '50% tests passed, 1 tests failed out of 2'; return 8; }
        stage rust count_cargo cargo_says
        stage cpp count_ctest ctest_says
        two_steps() { false; echo 'went on after an error'; }
        stage steps count_one two_steps
        stage last count_one true"#,
    );
    assert_eq!(last_line(&text), "7 passed, 4 failed", "{text}");
    assert!(!text.contains("went on after an error"), "{text}");
    assert_eq!(status, 1);
}

#[test]
fn what_never_reached_a_result_is_a_failure() {
    let (text, status) = bash(
        "broken",
        r#"trap summary EXIT
        build_breaks() { echo 'test result: ok. 4 passed; 0 failed'; return 101; }
        says_nothing() { :; }
        stage breaks count_cargo build_breaks
        stage nothing count_cargo says_nothing
        stage none count_ctest says_nothing"#,
    );
    assert_eq!(last_line(&text), "4 passed, 3 failed", "{text}");
    assert_eq!(status, 1);
}

#[test]
fn checks_that_report_themselves_are_counted_and_planted_defects_must_be_found() {
    let (text, status) = bash(
        "reported",
        r#". scripts/lib/verify.sh
        trap summary EXIT
        finds() { echo "planted: $1"; return 1; }
        good() {
          must one true
          must_find two planted finds it
        }
        bad() {
          must one false
          must_find two planted true
          must_find three planted false
          must four true
        }
        dies() { must one true; false; must two true; }
        stage good count_reported good
        stage bad count_reported bad
        stage dies count_reported dies
        note size '17 bytes'"#,
    );
    // 2 and 0, 1 and 3, then 1 and what ended the stage without a report.
    assert_eq!(last_line(&text), "4 passed, 4 failed", "{text}");
    assert!(text.contains("17 bytes"), "{text}");
    assert_eq!(status, 1);
}

#[test]
fn an_early_end_is_a_failure_and_nothing_at_all_too() {
    let (text, status) = bash(
        "early",
        "trap summary EXIT; stage one count_one true; exit 2",
    );
    assert_eq!(last_line(&text), "1 passed, 1 failed", "{text}");
    assert_ne!(status, 0);
    let (text, status) = bash("empty", "trap summary EXIT; skip one 'no trace'");
    assert_eq!(last_line(&text), "0 passed, 0 failed", "{text}");
    assert_ne!(status, 0);
}
