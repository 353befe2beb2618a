//! Runs that do not depend on each other, over threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs all tasks on this number of threads. The results are in the order of the tasks.
pub fn run_all<T: Sync, R: Send>(
    tasks: &[T],
    threads: usize,
    run: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<_>> = Mutex::new(tasks.iter().map(|_| None).collect());
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, tasks.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(at) else {
                        return;
                    };
                    let result = run(task);
                    if let Ok(mut done) = done.lock() {
                        done[at] = Some(result);
                    }
                }
            });
        }
    });
    let done = done
        .into_inner()
        .unwrap_or_else(|poison| poison.into_inner());
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_tasks() {
        let tasks: Vec<_> = (0..100u64).collect();
        let squares: Vec<_> = tasks.iter().map(|it| it * it).collect();
        for threads in [0, 1, 3, 1000] {
            assert_eq!(run_all(&tasks, threads, |it| it * it), squares);
        }
        assert_eq!(run_all(&[], 2, |it: &u64| *it), [0; 0]);
    }
}
