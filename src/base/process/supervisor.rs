//! Supervised tasks: those that must not end while the process serves: they feed it policies, accept
//! connections, renew certificates, bring watches over.
//!
//! Hides how the end of one is noticed, on whatever thread it runs. Does not know what they do.

use std::{
    io,
    panic::AssertUnwindSafe,
    sync::{Arc, mpsc},
    thread,
};

use futures_util::FutureExt;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    runtime::{self, LocalOptions, LocalRuntime},
    sync::{oneshot, watch},
    task::JoinSet,
};

use ctrlmesh_net::drain::Draining;

/// Watches supervised tasks and reports the first that ends. Cheap to clone, one for each thread.
#[derive(Clone, Debug)]
pub struct Supervisor {
    first: Arc<watch::Sender<Option<Lost>>>,
    panics: Counter,
    draining: Draining,
}

/// Supervised tasks. They stop when this is dropped.
#[derive(Debug, Default)]
pub struct SupervisedTasks(JoinSet<()>);

impl SupervisedTasks {
    /// Waits until all tasks have ended.
    pub async fn all_ended(&mut self) {
        while self.0.join_next().await.is_some() {}
    }

    /// Stops all tasks.
    pub async fn stop(&mut self) {
        self.0.shutdown().await;
    }
}

/// A thread with a runtime of its own, which runs one supervised task.
#[derive(Debug)]
pub struct SupervisedThread {
    thread: thread::JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

impl SupervisedThread {
    /// Waits until the task has ended and its runtime is gone.
    pub async fn ended(self) {
        let _ = self.ended.await;
        let _ = self.thread.join();
    }
}

/// A supervised task that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{task} {how}, without which the process must not go on")]
pub struct Lost {
    task: &'static str,
    how: &'static str,
}

impl Supervisor {
    /// A monitor of tasks that may return once `draining` has begun. `panics` counts those that
    /// panicked.
    pub fn new(panics: Counter, draining: Draining) -> Self {
        Self { first: Arc::default(), panics, draining }
    }

    /// Starts a supervised task among others that are stopped with it.
    pub fn spawn(
        &self,
        tasks: &mut SupervisedTasks,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        tasks.0.spawn(self.clone().watch(name, task));
    }

    /// Starts a supervised task on this thread's runtime, among others that are stopped with it.
    pub fn spawn_local(
        &self,
        tasks: &mut SupervisedTasks,
        name: &'static str,
        task: impl Future<Output = ()> + 'static,
    ) {
        tasks.0.spawn_local(self.clone().watch(name, task));
    }

    /// Starts a thread by the name `thread`, whose runtime runs the task that `make` returns there.
    /// Fails if the thread or its runtime cannot be made; then the task does not run.
    pub fn start_thread<T: Future<Output = ()>>(
        &self,
        thread: String,
        task: &'static str,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<SupervisedThread> {
        let supervisor = self.clone();
        let (report, built) = mpsc::sync_channel(1);
        let (end, ended) = oneshot::channel();
        let thread = thread::Builder::new().name(thread).spawn(move || {
            let runtime = match local_runtime() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = report.send(Err(error));
                    return;
                }
            };
            let _ = report.send(Ok(()));
            runtime.block_on(supervisor.watch(task, make()));
            drop(runtime);
            let _ = end.send(());
        })?;
        built.recv().map_err(io::Error::other).flatten()?;
        Ok(SupervisedThread { thread, ended })
    }

    /// Runs `task` to its end, which is a loss: it is logged by this name, and a panic is counted.
    /// The end is not a loss if the task is dropped, or returns during a drain.
    async fn watch(self, name: &'static str, task: impl Future<Output = ()>) {
        // State that a panic left half done is never seen: the process ends.
        let how = match AssertUnwindSafe(task).catch_unwind().await {
            Ok(()) if self.draining.deadline().is_some() => return,
            Ok(()) => "returned",
            Err(_) => {
                self.panics.inc();
                "panicked"
            }
        };
        tracing::error!(task = name, how, "a task that must not end has ended");
        self.first.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(Lost { task: name, how });
            is_first
        });
    }

    /// Waits for the first loss.
    pub async fn loss(&self) {
        // The sender is our own, so this does not fail.
        let _ = self.first.subscribe().wait_for(Option::is_some).await;
    }

    /// The first loss so far.
    pub fn lost(&self) -> Option<Lost> {
        *self.first.borrow()
    }
}

fn local_runtime() -> io::Result<LocalRuntime> {
    runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

#[cfg(test)]
mod tests {
    use std::{future::pending, time::Duration};

    use super::*;
    use ctrlmesh_net::drain::{self, Drain};

    fn supervisor() -> (Supervisor, Drain) {
        let (drain, draining) = drain::channel();
        (Supervisor::new(Counter::default(), draining), drain)
    }

    async fn lost_soon(supervisor: &Supervisor) {
        tokio::time::timeout(Duration::from_secs(10), supervisor.loss()).await.expect("a loss");
    }

    #[tokio::test]
    async fn the_first_loss_is_told_by_name_and_a_panic_is_counted() {
        let (supervisor, _drain) = supervisor();
        let mut tasks = JoinSet::new();
        tasks.spawn(supervisor.clone().watch("one that stays", pending()));
        let (end, ended) = oneshot::channel::<()>();
        tasks.spawn(supervisor.clone().watch("one that panics", async move {
            ended.await.unwrap();
            panic!("by the test");
        }));
        assert_eq!(supervisor.lost(), None);
        end.send(()).unwrap();
        lost_soon(&supervisor).await;
        let lost = supervisor.lost().unwrap();
        assert!(lost.to_string().starts_with("one that panics panicked"), "{lost}");
        assert_eq!(supervisor.panics.get(), 1);

        supervisor.clone().watch("one that returns", async {}).await;
        assert_eq!(supervisor.lost(), Some(lost), "the first is the cause");
        assert_eq!(supervisor.panics.get(), 1);
    }

    #[tokio::test]
    async fn a_task_that_returns_is_lost_unless_a_drain_lets_it() {
        let (supervisor, drain) = supervisor();
        drain.start(Duration::ZERO);
        supervisor.clone().watch("one that may", async {}).await;
        assert_eq!(supervisor.lost(), None);

        let (supervisor, _drain) = self::supervisor();
        supervisor.clone().watch("one that may not", async {}).await;
        assert!(supervisor.lost().unwrap().to_string().starts_with("one that may not returned"));
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_a_loss_and_ends() {
        let (supervisor, _drain) = supervisor();
        let thread = supervisor
            .start_thread("data-7".to_owned(), "a thread", || async {
                assert_ne!(thread::current().name(), Some("data-7"), "by the test");
            })
            .unwrap();
        lost_soon(&supervisor).await;
        let lost = supervisor.lost().unwrap();
        assert!(lost.to_string().starts_with("a thread panicked"), "{lost}");
        assert_eq!(supervisor.panics.get(), 1);
        thread.ended().await;
    }

    #[tokio::test]
    async fn the_loss_of_a_task_on_a_thread_is_noticed_on_another() {
        let (supervisor, _drain) = supervisor();
        let inner = supervisor.clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = supervisor.start_thread("data-7".to_owned(), "a thread", || async move {
            let mut tasks = SupervisedTasks::default();
            inner.spawn_local(&mut tasks, "one of its tasks", async { panic!("by the test") });
            let _ = ended.await;
            tasks.stop().await;
        });
        lost_soon(&supervisor).await;
        let lost = supervisor.lost().unwrap();
        assert!(lost.to_string().starts_with("one of its tasks panicked"), "{lost}");
        end.send(()).unwrap();
        thread.unwrap().ended().await;
        assert_eq!(supervisor.lost(), Some(lost), "the first is the cause");
    }

    #[tokio::test]
    async fn a_task_that_is_dropped_is_no_loss() {
        let (supervisor, _drain) = supervisor();
        let mut tasks = JoinSet::new();
        tasks.spawn(supervisor.clone().watch("one that is aborted", pending()));
        tasks.shutdown().await;
        assert_eq!(supervisor.lost(), None);
    }
}
