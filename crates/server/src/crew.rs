//! Tasks that run side by side for as long as the server does.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

use crate::server::Error;

/// Named tasks. All end when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Crew {
    tasks: JoinSet<Result<(), Error>>,
    names: HashMap<Id, &'static str>,
}

impl Crew {
    /// Starts a task.
    pub(crate) fn start(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until a task ends, which none should.
    pub(crate) async fn first_end(&mut self) -> Error {
        let Some(ended) = self.tasks.join_next_with_id().await else {
            // Nobody is there to fail.
            return std::future::pending().await;
        };
        match self.outcome(ended) {
            (name, Ok(())) => Error::Ended(name),
            (_, Err(error)) => error,
        }
    }

    /// Waits for the end of all tasks, which have been asked to. Those that take longer than
    /// `limit` are ended where they wait, and the log says what they were working on.
    pub(crate) async fn end(mut self, limit: Duration, working_on: impl FnOnce() -> Vec<String>) {
        let deadline = Instant::now() + limit;
        loop {
            match timeout_at(deadline, self.tasks.join_next_with_id()).await {
                Ok(None) => return,
                Ok(Some(ended)) => {
                    if let (name, Err(error)) = self.outcome(ended) {
                        let error = crate::story::one_line(&error);
                        tracing::warn!(task = name, error, "failed at the end");
                    }
                }
                Err(_) => break,
            }
        }
        let late: Vec<_> = self.names.values().copied().collect();
        let working_on = working_on().join(", ");
        tracing::warn!(
            tasks = late.join(","),
            working_on,
            "did not end within {} s, given up",
            limit.as_secs()
        );
        self.tasks.shutdown().await;
    }

    /// Who ended, and how.
    fn outcome(
        &mut self,
        ended: Result<(Id, Result<(), Error>), JoinError>,
    ) -> (&'static str, Result<(), Error>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let name = self.names.remove(&id).unwrap_or("unknown");
        let outcome = match ended {
            Ok((_, Ok(()))) => Ok(()),
            Ok((_, Err(source))) => Err(Error::Task { name, source: Box::new(source) }),
            Err(_) => Err(Error::Panicked(name)),
        };
        (name, outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::one_line;
    use tokio::sync::oneshot::error::TryRecvError;

    const SOON: Duration = Duration::from_millis(50);

    fn crew() -> Crew {
        let mut crew = Crew::default();
        crew.start("idle", std::future::pending());
        crew
    }

    #[tokio::test]
    async fn the_first_task_that_ends_is_told_with_its_name_and_reason() {
        let mut crew = crew();
        crew.start("bad", async { Err(Error::NoNamespace("velero".to_owned())) });
        let error = one_line(&crew.first_end().await);
        assert!(error.starts_with("`bad` failed: the namespace `velero`"), "{error}");
        crew.start("done", async { Ok(()) });
        assert!(matches!(crew.first_end().await, Error::Ended("done")));
    }

    #[tokio::test]
    async fn a_panic_is_a_failure_with_a_name() {
        let mut crew = crew();
        crew.start("broken", async { panic!("for this test") });
        assert!(matches!(crew.first_end().await, Error::Panicked("broken")));
    }

    #[tokio::test]
    async fn tasks_that_do_not_end_are_not_waited_for() {
        let mut crew = crew();
        let (sender, mut receiver) = tokio::sync::oneshot::channel::<()>();
        crew.start("stuck", async move {
            let _held = sender;
            std::future::pending().await
        });
        let mut asked = false;
        let working_on = || {
            asked = receiver.try_recv() == Err(TryRecvError::Empty);
            Vec::new()
        };
        crew.end(SOON, working_on).await;
        assert!(asked, "what it works on is asked for while it still does");
        assert!(receiver.await.is_err(), "the task is gone, and what it held");
    }
}
