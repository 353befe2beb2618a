//! What one worker computes: passes over the layers of its model, and what each has to wait for.
//!
//! The worker computes one thing at a time. Backward passes go from the last layer to the first,
//! and each layer's gradient is submitted when it is there; a forward pass computes a layer when
//! the layer before is done and the result of this layer's last gradient is there. Nothing here
//! knows of the network or of time: [`Training`] is told what has happened, and says what follows.

use super::models::Plan;
use crate::rng::{MILLION, Rng};
use std::rc::Rc;
use std::time::Duration;

/// How much computation varies, in parts of a million to either side.
pub const JITTER_PPM: u64 = 50_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward,
    Backward,
}

/// What a worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The layer whose gradient is to be submitted now.
    pub submit: Option<u32>,
    /// Whether an iteration's computation has ended.
    pub iterated: bool,
    /// How long it computes now.
    pub then: Then,
}

/// See [`Next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It computes for so long; then [`Training::computed`] is to be called.
    Compute(Duration),
    /// It waits for this layer's result.
    Wait(u32),
    /// It has computed everything, and waits for all results.
    Drain,
}

/// One worker's training.
pub struct Training {
    plan: Rc<Plan>,
    iterations: u32,
    iteration: u32,
    pass: Pass,
    layer: usize,
    waits: bool,
    /// Results so far, by layer.
    results: Box<[u32]>,
    /// Of this iteration, in parts of a million.
    factor: u64,
    rng: Rng,
}

impl Training {
    /// A worker that has computed nothing yet. [`begin`](Self::begin) starts it.
    #[must_use]
    pub fn new(plan: Rc<Plan>, iterations: u32, rng: Rng) -> Self {
        Self {
            results: vec![0; plan.layers.len()].into(),
            plan,
            iterations,
            iteration: 0,
            pass: Pass::Forward,
            layer: 0,
            waits: false,
            factor: 0,
            rng,
        }
    }

    /// The first thing to compute.
    pub fn begin(&mut self) -> Next {
        self.draw();
        Next {
            submit: None,
            iterated: false,
            then: self.compute(),
        }
    }

    fn jitter(&mut self) -> u64 {
        let middle = u64::from(MILLION);
        self.rng.between(middle - JITTER_PPM, middle + JITTER_PPM)
    }

    fn draw(&mut self) {
        self.factor = self.jitter();
    }

    fn compute(&mut self) -> Then {
        let step = self.plan.layers[self.layer];
        let time = match self.pass {
            Pass::Forward => step.forward,
            Pass::Backward => step.backward,
        };
        let million = u128::from(MILLION);
        let factors = u128::from(self.factor) * u128::from(self.jitter());
        let time = time.as_nanos() * factors / (million * million);
        Then::Compute(Duration::from_nanos(time as u64))
    }

    /// The forward pass of this layer, if its weights are there.
    fn forward(&mut self, layer: usize) -> Then {
        (self.pass, self.layer) = (Pass::Forward, layer);
        self.waits = self.results[layer] < self.iteration;
        if self.waits {
            return Then::Wait(layer as u32);
        }
        self.compute()
    }

    /// What was to be computed has been.
    pub fn computed(&mut self) -> Next {
        let layers = self.plan.layers.len();
        let (mut submit, mut iterated) = (None, false);
        let then = match self.pass {
            Pass::Forward if self.layer + 1 < layers => self.forward(self.layer + 1),
            Pass::Forward => {
                self.pass = Pass::Backward;
                self.compute()
            }
            Pass::Backward => {
                submit = Some(self.layer as u32);
                if self.layer > 0 {
                    self.layer -= 1;
                    self.compute()
                } else {
                    iterated = true;
                    self.iteration += 1;
                    if self.iteration == self.iterations {
                        Then::Drain
                    } else {
                        self.draw();
                        self.forward(0)
                    }
                }
            }
        };
        Next {
            submit,
            iterated,
            then,
        }
    }

    /// A layer's result is there. Says what to compute now, if it was this that was waited for.
    pub fn delivered(&mut self, layer: u32) -> Option<Then> {
        self.results[layer as usize] += 1;
        if self.waits && self.layer == layer as usize {
            self.waits = false;
            return Some(self.compute());
        }
        None
    }

    /// Whether everything is computed and all results are there.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.iteration == self.iterations && self.results.iter().all(|&n| n == self.iterations)
    }
}

#[cfg(test)]
mod tests {
    use super::super::models::{Model, Step};
    use super::*;

    fn plan(layers: usize) -> Rc<Plan> {
        let step = Step {
            fragments: 1,
            forward: Duration::from_micros(10),
            backward: Duration::from_micros(20),
        };
        Rc::new(Plan {
            model: Model::Small,
            layers: vec![step; layers],
        })
    }

    fn compute(then: Then) -> u64 {
        match then {
            Then::Compute(time) => time.as_nanos() as u64,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn gradients_leave_from_the_last_layer_to_the_first_and_weights_are_waited_for() {
        let mut t = Training::new(plan(3), 2, Rng::new(1));
        let forward = 9_025..=11_025;
        let backward = 18_050..=22_050;
        assert!(forward.contains(&compute(t.begin().then)));
        for _ in 0..2 {
            assert!(forward.contains(&compute(t.computed().then)));
        }
        let next = t.computed();
        assert_eq!(next.submit, None);
        assert!(backward.contains(&compute(next.then)));
        for layer in [2, 1] {
            let next = t.computed();
            assert_eq!((next.submit, next.iterated), (Some(layer), false));
            assert!(backward.contains(&compute(next.then)));
        }
        let next = t.computed();
        assert_eq!((next.submit, next.iterated), (Some(0), true));
        assert_eq!(next.then, Then::Wait(0));
        // Not what it waits for.
        assert_eq!(t.delivered(1), None);
        let then = t.delivered(0).unwrap();
        assert!(forward.contains(&compute(then)));
        // Layer 1 is there already, layer 2 is not.
        assert!(forward.contains(&compute(t.computed().then)));
        assert_eq!(t.computed().then, Then::Wait(2));
        assert!(t.delivered(2).is_some());
    }

    #[test]
    fn it_is_done_when_the_last_results_are_there() {
        let mut t = Training::new(plan(2), 1, Rng::new(1));
        t.begin();
        let mut then = Then::Wait(0);
        for _ in 0..4 {
            then = t.computed().then;
        }
        assert_eq!(then, Then::Drain);
        assert_eq!(t.delivered(1), None);
        assert!(!t.is_done());
        assert_eq!(t.delivered(0), None);
        assert!(t.is_done());
    }

    #[test]
    fn the_same_seed_computes_the_same() {
        let times = |seed| {
            let mut t = Training::new(plan(4), 1, Rng::new(seed));
            let mut times = vec![compute(t.begin().then)];
            for _ in 0..7 {
                times.push(compute(t.computed().then));
            }
            times
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
