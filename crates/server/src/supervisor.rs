//! Tasks that run concurrently for as long as the server does.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout_at};

use crate::server::Error;

/// Named tasks. Dropping the set ends them all.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    tasks: JoinSet<Result<(), Error>>,
    names: HashMap<Id, &'static str>,
}

impl TaskSet {
    pub(crate) fn start(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), Error>> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits until a task ends, which none should.
    pub(crate) async fn wait_for_first_exit(&mut self) -> Error {
        let Some(ended) = self.tasks.join_next_with_id().await else {
            // Without tasks none can fail.
            return std::future::pending().await;
        };
        match self.task_outcome(ended) {
            (name, Ok(())) => Error::Ended(name),
            (_, Err(error)) => error,
        }
    }

    /// Waits for the end of all tasks, which have been asked to stop. Tasks that take longer than
    /// `limit` are aborted, and the log names their runs.
    pub(crate) async fn shut_down(
        mut self,
        limit: Duration,
        working_on: impl FnOnce() -> Vec<String>,
    ) {
        let deadline = Instant::now() + limit;
        loop {
            match timeout_at(deadline, self.tasks.join_next_with_id()).await {
                Ok(None) => return,
                Ok(Some(ended)) => {
                    if let (name, Err(error)) = self.task_outcome(ended) {
                        let error = crate::error_text::status_message(&error);
                        tracing::warn!(
                            task = name,
                            error,
                            "task failed while the server was stopping"
                        );
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
            "tasks did not end within {} s; aborting them",
            limit.as_secs()
        );
        self.tasks.shutdown().await;
    }

    /// Name and outcome of a task that ended.
    fn task_outcome(
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
    use crate::error_text::status_message;
    use tokio::sync::oneshot::error::TryRecvError;

    const SOON: Duration = Duration::from_millis(50);

    fn task_set_with_two_tasks() -> TaskSet {
        let mut tasks = TaskSet::default();
        tasks.start("idle", std::future::pending());
        tasks
    }

    #[tokio::test]
    async fn first_task_exit_carries_name_and_reason() {
        let mut tasks = task_set_with_two_tasks();
        tasks.start("bad", async { Err(Error::NoNamespace("velero".to_owned())) });
        let error = status_message(&tasks.wait_for_first_exit().await);
        assert!(error.starts_with("`bad` failed: namespace `velero`"), "{error}");
        tasks.start("done", async { Ok(()) });
        assert!(matches!(tasks.wait_for_first_exit().await, Error::Ended("done")));
    }

    #[tokio::test]
    async fn panicked_task_is_reported_by_name() {
        let mut tasks = task_set_with_two_tasks();
        tasks.start("broken", async { panic!("for this test") });
        assert!(matches!(tasks.wait_for_first_exit().await, Error::Panicked("broken")));
    }

    #[tokio::test]
    async fn shutdown_aborts_tasks_after_the_limit() {
        let mut tasks = task_set_with_two_tasks();
        let (sender, mut receiver) = tokio::sync::oneshot::channel::<()>();
        tasks.start("stuck", async move {
            let _sender = sender;
            std::future::pending().await
        });
        let mut asked = false;
        let working_on = || {
            asked = receiver.try_recv() == Err(TryRecvError::Empty);
            Vec::new()
        };
        tasks.shut_down(SOON, working_on).await;
        assert!(asked, "what it works on is asked for while it still does");
        assert!(receiver.await.is_err(), "the task is gone, and what it held");
    }
}
