//! Waiting for a condition, in tests.

use std::fmt::Debug;
use std::time::Duration;

/// Pause between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Result of one poll: the answer, or a text about the current state.
pub trait Poll {
    /// What is waited for.
    type Answer;

    /// The answer, or the state, which is named if it does not change in time.
    fn answer_or_state(self) -> Result<Self::Answer, impl Debug>;
}

impl Poll for bool {
    type Answer = ();

    fn answer_or_state(self) -> Result<(), impl Debug> {
        if self { Ok(()) } else { Err("not yet true") }
    }
}

impl<T> Poll for Option<T> {
    type Answer = T;

    fn answer_or_state(self) -> Result<T, impl Debug> {
        self.ok_or("no answer yet")
    }
}

impl<T, S: Debug> Poll for Result<T, S> {
    type Answer = T;

    fn answer_or_state(self) -> Result<T, impl Debug> {
        self
    }
}

/// Polls until there is an answer: `true`, `Some` or `Ok`. After `limit`, panics with the description and the last
/// state, which is the error of a `Result`.
pub async fn eventually<P: Poll>(
    description: &str,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> P,
) -> P::Answer {
    let deadline = tokio::time::Instant::now() + limit;
    let mut state = None;
    loop {
        // A poll may hang in a half-open connection: it never outlives the limit.
        if let Ok(polled) = tokio::time::timeout_at(deadline, poll()).await {
            match polled.answer_or_state() {
                Ok(answer) => return answer,
                Err(current) => state = Some(format!("{current:?}")),
            }
        }
        if tokio::time::Instant::now() >= deadline {
            give_up(description, limit, state);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The same without a runtime.
pub fn eventually_blocking<P: Poll>(
    description: &str,
    limit: Duration,
    mut poll: impl FnMut() -> P,
) -> P::Answer {
    let deadline = std::time::Instant::now() + limit;
    loop {
        match poll().answer_or_state() {
            Ok(answer) => return answer,
            Err(state) if std::time::Instant::now() >= deadline => {
                give_up(description, limit, Some(format!("{state:?}")))
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[expect(clippy::panic, reason = "for tests only, which end so")]
fn give_up(description: &str, limit: Duration, state: Option<String>) -> ! {
    let state = state.unwrap_or_else(|| "the poll did not return".to_owned());
    panic!("{description}: not within {} s; last state: {state}", limit.as_secs_f32())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answer_of_a_later_poll_is_returned() {
        let mut polls = 0;
        let answer = eventually("three polls", Duration::from_secs(1), async || {
            polls += 1;
            (polls == 3).then_some("done")
        });
        assert_eq!(answer.await, "done");
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "pod is ready: not within 60 s; last state: \"Pending\"")]
    async fn last_state_is_in_the_panic() {
        eventually("pod is ready", Duration::from_mins(1), async || Err::<(), _>("Pending")).await;
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "answer: not within 1 s; last state: the poll did not return")]
    async fn poll_that_hangs_ends_at_the_limit() {
        eventually("answer", Duration::from_secs(1), async || std::future::pending::<bool>().await)
            .await;
    }

    #[test]
    #[should_panic(expected = "flag: not within 0 s; last state: \"not yet true\"")]
    fn wait_without_a_runtime_has_a_limit_as_well() {
        eventually_blocking("flag", Duration::ZERO, || false);
    }
}
