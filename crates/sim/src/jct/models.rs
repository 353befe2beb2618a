//! The two models that are trained, layer by layer: parameters, and shares of the computation.
//!
//! Numbers are those of torchvision's VGG19 and ResNet50 v1.5 (stride in the 3 × 3 convolution) for
//! images of 224 × 224 and 1,000 classes. A layer's computation is counted in multiplications; a
//! bottleneck block of ResNet50 counts as one layer, with its batch norms.

use std::time::Duration;

/// Which model a job trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Model {
    /// Much to send for what it computes.
    Vgg19,
    /// Much to compute for what it sends.
    Resnet50,
    /// So small that hundreds of jobs fit a simulation.
    Small,
}

/// A layer, in the order of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Parameters: weights, biases, and those of batch norms.
    pub parameters: u64,
    /// Multiplications of a forward pass over one image.
    pub multiplications: u64,
}

/// Bytes of a gradient's element.
const ELEMENT_BYTES: u64 = 4;

impl Model {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vgg19 => "vgg19",
            Self::Resnet50 => "resnet50",
            Self::Small => "small",
        }
    }

    /// Computation of one iteration, forward and backward: an assumption (docs/JCT.md).
    #[must_use]
    pub const fn computation(self) -> Duration {
        match self {
            Self::Vgg19 => Duration::from_millis(36),
            Self::Resnet50 => Duration::from_millis(13),
            Self::Small => Duration::from_millis(4),
        }
    }

    /// Its layers.
    #[must_use]
    pub fn layers(self) -> Vec<Layer> {
        match self {
            Self::Vgg19 => vgg19(),
            Self::Resnet50 => resnet50(),
            Self::Small => (0..8)
                .map(|_| Layer {
                    parameters: 1 << 18,
                    multiplications: 1,
                })
                .collect(),
        }
    }
}

/// A convolution with biases, or (on a side of 1) a fully connected layer.
const fn convolution(kernel: u64, from: u64, to: u64, side: u64) -> Layer {
    let weights = kernel * kernel * from * to;
    Layer {
        parameters: weights + to,
        multiplications: weights * side * side,
    }
}

/// A convolution without biases, and the batch norm behind it.
const fn normed(kernel: u64, from: u64, to: u64, side: u64) -> Layer {
    let layer = convolution(kernel, from, to, side);
    Layer {
        parameters: layer.parameters + to,
        ..layer
    }
}

fn vgg19() -> Vec<Layer> {
    const STAGES: [(u64, u64, u64); 5] = [
        (64, 2, 224),
        (128, 2, 112),
        (256, 4, 56),
        (512, 4, 28),
        (512, 4, 14),
    ];
    let mut layers = Vec::new();
    let mut from = 3;
    for (to, depth, side) in STAGES {
        for _ in 0..depth {
            layers.push(convolution(3, from, to, side));
            from = to;
        }
    }
    for (from, to) in [(512 * 7 * 7, 4096), (4096, 4096), (4096, 1000)] {
        layers.push(convolution(1, from, to, 1));
    }
    layers
}

fn resnet50() -> Vec<Layer> {
    const STAGES: [(u64, u64, u64); 4] = [(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)];
    let mut layers = vec![normed(7, 3, 64, 112)];
    let (mut from, mut side_before) = (64, 56);
    for (middle, blocks, side) in STAGES {
        let to = 4 * middle;
        for block in 0..blocks {
            let mut parts = vec![
                normed(1, from, middle, side_before),
                normed(3, middle, middle, side),
                normed(1, middle, to, side),
            ];
            if block == 0 {
                // The way around the block has to change the shape, too.
                parts.push(normed(1, from, to, side));
            }
            layers.push(Layer {
                parameters: parts.iter().map(|p| p.parameters).sum(),
                multiplications: parts.iter().map(|p| p.multiplications).sum(),
            });
            (from, side_before) = (to, side);
        }
    }
    layers.push(convolution(1, 2048, 1000, 1));
    layers
}

/// A model at a scale: what a worker of a job does in each iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Of which model.
    pub model: Model,
    /// Its layers, in the order of the forward pass.
    pub layers: Vec<Step>,
}

/// What a layer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Fragments of its gradient, at least one.
    pub fragments: u64,
    /// Computation in the forward pass.
    pub forward: Duration,
    /// Computation in the backward pass.
    pub backward: Duration,
}

impl Plan {
    /// The model with parameters and computation divided by `scale`, in fragments of this many
    /// bytes.
    ///
    /// # Panics
    /// If a number is 0.
    #[must_use]
    pub fn new(model: Model, scale: u64, fragment_bytes: u64) -> Self {
        assert!(scale > 0 && fragment_bytes > 0);
        let layers = model.layers();
        let all: u64 = layers.iter().map(|l| l.multiplications).sum();
        let computation = model.computation().as_nanos() as u64 / scale;
        let step = |layer: &Layer| {
            let share = u128::from(computation) * u128::from(layer.multiplications);
            let share = (share / u128::from(all)) as u64;
            Step {
                fragments: (layer.parameters * ELEMENT_BYTES).div_ceil(scale * fragment_bytes),
                forward: Duration::from_nanos(share / 3),
                backward: Duration::from_nanos(share - share / 3),
            }
        };
        Self {
            model,
            layers: layers.iter().map(step).collect(),
        }
    }

    /// Fragments of an iteration.
    #[must_use]
    pub fn fragments(&self) -> u64 {
        self.layers.iter().map(|l| l.fragments).sum()
    }

    /// Computation of an iteration.
    #[must_use]
    pub fn computation(&self) -> Duration {
        self.layers.iter().map(|l| l.forward + l.backward).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(model: Model) -> Vec<u64> {
        model.layers().iter().map(|l| l.parameters).collect()
    }

    #[test]
    fn vgg19_has_its_parameters_and_multiplications() {
        let mut layers = vec![1792, 36_928, 73_856, 147_584, 295_168];
        layers.extend([590_080; 3]);
        layers.push(1_180_160);
        layers.extend([2_359_808; 7]);
        layers.extend([102_764_544, 16_781_312, 4_097_000]);
        assert_eq!(parameters(Model::Vgg19), layers);
        assert_eq!(layers.iter().sum::<u64>(), 143_667_240);
        let all: u64 = Model::Vgg19
            .layers()
            .iter()
            .map(|l| l.multiplications)
            .sum();
        // torchvision says 19.63 billion.
        assert_eq!(all / 10_000_000, 1963);
    }

    #[test]
    fn resnet50_has_its_parameters_and_multiplications() {
        let layers = parameters(Model::Resnet50);
        assert_eq!(layers.len(), 18);
        assert_eq!(layers[0], 9536);
        assert_eq!(layers[1..4].iter().sum::<u64>(), 215_808);
        assert_eq!(layers[4..8].iter().sum::<u64>(), 1_219_584);
        assert_eq!(layers[8..14].iter().sum::<u64>(), 7_098_368);
        assert_eq!(layers[14..17].iter().sum::<u64>(), 14_964_736);
        assert_eq!(layers.iter().sum::<u64>(), 25_557_032);
        let all: u64 = Model::Resnet50
            .layers()
            .iter()
            .map(|l| l.multiplications)
            .sum();
        // torchvision says 4.09 billion.
        assert_eq!(all / 10_000_000, 408);
    }

    #[test]
    fn scaling_keeps_the_ratio_of_sending_to_computing() {
        for (model, ratio) in [(Model::Vgg19, 1.39), (Model::Resnet50, 0.68)] {
            for scale in [1, 16, 32] {
                let plan = Plan::new(model, scale, 1024);
                // 1112 bytes on the wire at 100 Gbit/s.
                let sending = plan.fragments() as f64 * 88.96e-9;
                let found = sending / plan.computation().as_secs_f64();
                assert!(
                    (found / ratio - 1.0).abs() < 0.02,
                    "{model:?} {scale}: {found}"
                );
                assert!(plan.layers.iter().all(|l| l.fragments > 0));
            }
        }
    }
}
