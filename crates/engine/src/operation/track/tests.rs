use std::collections::HashMap;

use bowline_plugin::{Name, OperationId, ResourceIdentifier, State as Told};

use super::*;
use crate::operation::Kind;

/// How a plugin treats one operation.
#[derive(Clone, Debug)]
enum Behaviour {
    /// It succeeds at the poll of this number.
    SucceedsAt(u32),
    /// It answers no poll, ever.
    Hangs,
    /// Its polls fail so many times, and then it succeeds.
    Recovers(u32),
    /// It goes on until it is told to stop.
    StopsWhenTold,
    /// It goes on, whatever it is told.
    Deaf,
}

#[derive(Default)]
struct Plugin {
    behaviours: HashMap<String, Behaviour>,
    polls: Mutex<HashMap<String, u32>>,
    cancels: Mutex<Vec<String>>,
}

#[async_trait]
impl Asker for Plugin {
    async fn progress(&self, operation: &Operation) -> Result<Progress> {
        let id = operation.id.to_string();
        let polls = {
            let mut polls = self.polls.lock().unwrap();
            let count = polls.entry(id.clone()).or_default();
            *count += 1;
            *count
        };
        let state = match &self.behaviours[&id] {
            Behaviour::SucceedsAt(number) if polls >= *number => Told::Succeeded,
            Behaviour::Hangs => std::future::pending().await,
            Behaviour::Recovers(failures) if polls <= *failures => {
                return Err(Error::new(Code::Unavailable, "away"));
            }
            Behaviour::Recovers(_) => Told::Succeeded,
            Behaviour::StopsWhenTold if self.cancels.lock().unwrap().contains(&id) => {
                Told::Failed("stopped".into())
            }
            Behaviour::SucceedsAt(_) | Behaviour::Deaf | Behaviour::StopsWhenTold => Told::Running,
        };
        Ok(Progress { state, done: polls.into(), ..Progress::default() })
    }

    async fn cancel(&self, operation: &Operation) -> Result<()> {
        self.cancels.lock().unwrap().push(operation.id.to_string());
        if matches!(self.behaviours[operation.id.as_str()], Behaviour::Deaf) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

fn operation(id: &str, timeout: Duration) -> Operation {
    let item = ResourceIdentifier {
        group: String::new(),
        resource: "pods".into(),
        namespace: "shop".into(),
        name: id.into(),
    };
    let plugin: Name = "x.io/a".parse().unwrap();
    let id = OperationId::new(id).unwrap();
    Operation::begun(Kind::ItemBackup, plugin, item, id, Timestamp::now(), timeout)
}

/// Pauses are short: the machine reads the real clock.
const QUICK: Deadlines = Deadlines {
    poll: Duration::from_secs(5),
    cancel: Duration::from_millis(50),
    longest_pause: Duration::from_millis(1),
};
const LONG: Duration = Duration::from_hours(1);

async fn track(
    behaviours: &[(&str, Behaviour)],
    timeout: Duration,
    cancel: &CancellationToken,
    stop: &CancellationToken,
) -> (Vec<Operation>, Plugin) {
    let plugin = Plugin {
        behaviours: behaviours.iter().map(|(id, how)| ((*id).to_owned(), how.clone())).collect(),
        ..Plugin::default()
    };
    let operations = behaviours.iter().map(|(id, _)| operation(id, timeout)).collect();
    let board = Arc::new(Board::new(operations));
    let tracker = Tracker {
        board: Arc::clone(&board),
        asker: &plugin,
        rate: &Rate::default(),
        deadlines: QUICK,
    };
    tracker.run(cancel, "by a test", stop).await;
    (board.operations(), plugin)
}

fn state(operations: &[Operation], id: &str) -> State {
    operations.iter().find(|operation| operation.id.as_str() == id).unwrap().state.clone()
}

#[tokio::test]
async fn each_operation_is_followed_to_its_end_and_trouble_that_passes_is_forgiven() {
    let (cancel, stop) = Default::default();
    let behaviours = [
        ("at-once", Behaviour::SucceedsAt(1)),
        ("later", Behaviour::SucceedsAt(3)),
        ("away", Behaviour::Recovers(2)),
    ];
    let (operations, plugin) = track(&behaviours, LONG, &cancel, &stop).await;
    assert!(operations.iter().all(|operation| operation.state == State::Completed));
    assert_eq!(plugin.polls.lock().unwrap()["later"], 3);
    assert!(plugin.cancels.lock().unwrap().is_empty());
}

#[tokio::test]
async fn one_that_hangs_keeps_nobody_waiting_and_ends_at_its_deadline() {
    let (cancel, stop) = Default::default();
    let behaviours = [("hangs", Behaviour::Hangs), ("good", Behaviour::SucceedsAt(2))];
    let (operations, plugin) =
        track(&behaviours, Duration::from_millis(1500), &cancel, &stop).await;
    assert_eq!(state(&operations, "good"), State::Completed);
    let State::Failed(reason) = state(&operations, "hangs") else { panic!("{operations:?}") };
    assert!(reason.starts_with("timed out"), "{reason}");
    assert_eq!(*plugin.cancels.lock().unwrap(), ["hangs"]);
}

#[tokio::test]
async fn a_cancel_reaches_every_operation_once_and_says_what_came_of_it() {
    let (cancel, stop) = <(CancellationToken, CancellationToken)>::default();
    let behaviours = [("stops", Behaviour::StopsWhenTold), ("hangs", Behaviour::StopsWhenTold)];
    cancel.cancel();
    let (operations, plugin) = track(&behaviours, LONG, &cancel, &stop).await;
    assert_eq!(state(&operations, "stops"), State::Failed("canceled: stopped".into()));
    let mut cancels = plugin.cancels.lock().unwrap().clone();
    cancels.sort();
    assert_eq!(cancels, ["hangs", "stops"]);
}

#[tokio::test]
async fn one_that_does_not_hear_a_deadline_ends_all_the_same() {
    let (cancel, stop) = Default::default();
    let behaviours = [("deaf", Behaviour::Deaf)];
    let (operations, _) = track(&behaviours, Duration::from_millis(30), &cancel, &stop).await;
    let State::Failed(reason) = state(&operations, "deaf") else { panic!("{operations:?}") };
    assert!(reason.contains("could not stop it and may go on"), "{reason}");
}

#[tokio::test]
async fn a_server_that_ends_leaves_operations_as_they_are() {
    let (cancel, stop) = <(CancellationToken, CancellationToken)>::default();
    stop.cancel();
    let behaviours = [("long", Behaviour::SucceedsAt(u32::MAX))];
    let (operations, plugin) = track(&behaviours, LONG, &cancel, &stop).await;
    assert!(!state(&operations, "long").is_terminal());
    assert!(plugin.cancels.lock().unwrap().is_empty());
}
