// The last layer, softmax, cross-entropy and its gradient.
//
// input (84; quads), weights (10, 84), bias (10), labels
// -> logits (12; quads), d_logits (12; quads) = softmax - onehot, and the step's statistics: loss
// in fixed point, right answers, samples, largest loss.
//
// An invocation computes a quad of samples. The ten classes are padded to twelve: rows 10 and 11
// of d_logits are 0. So are the gradients of the samples that fill the last quad.

override INPUTS: u32;
// Where the layer's tensors begin in the parameters, in vec4.
override WEIGHT: u32;
override BIAS: u32;
// Words of the statistics.
override LOSS: u32;
override RIGHT: u32;
override SAMPLES: u32;
override LOSS_MAXIMUM: u32;
override LANES: u32;

@group(0) @binding(4) var<storage, read> labels: array<u32>;
@group(0) @binding(5) var<storage, read> samples: array<u32>;
@group(0) @binding(6) var<storage, read_write> logits: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> d_logits: array<vec4f>;

// Index of the loss among the scales.
const LOSS_SCALE = 10u;

@compute @workgroup_size(LANES)
fn loss_head(@builtin(global_invocation_id) id: vec3u) {
    let quad = id.x;
    if quad >= quad_count() {
        return;
    }
    let b0 = parameters(BIAS);
    let b1 = parameters(BIAS + 1u);
    let b2 = parameters(BIAS + 2u);
    var z0 = vec4f(b0.x);
    var z1 = vec4f(b0.y);
    var z2 = vec4f(b0.z);
    var z3 = vec4f(b0.w);
    var z4 = vec4f(b1.x);
    var z5 = vec4f(b1.y);
    var z6 = vec4f(b1.z);
    var z7 = vec4f(b1.w);
    var z8 = vec4f(b2.x);
    var z9 = vec4f(b2.y);
    let row = INPUTS / 4u;
    for (var i = 0u; i < row; i++) {
        let x = Inputs(
            input(4u * i, quad),
            input(4u * i + 1u, quad),
            input(4u * i + 2u, quad),
            input(4u * i + 3u, quad),
        );
        let w = WEIGHT + i;
        z0 += weigh(x, parameters(w));
        z1 += weigh(x, parameters(w + row));
        z2 += weigh(x, parameters(w + 2u * row));
        z3 += weigh(x, parameters(w + 3u * row));
        z4 += weigh(x, parameters(w + 4u * row));
        z5 += weigh(x, parameters(w + 5u * row));
        z6 += weigh(x, parameters(w + 6u * row));
        z7 += weigh(x, parameters(w + 7u * row));
        z8 += weigh(x, parameters(w + 8u * row));
        z9 += weigh(x, parameters(w + 9u * row));
    }
    logits[quad_index(0u, quad)] = z0;
    logits[quad_index(1u, quad)] = z1;
    logits[quad_index(2u, quad)] = z2;
    logits[quad_index(3u, quad)] = z3;
    logits[quad_index(4u, quad)] = z4;
    logits[quad_index(5u, quad)] = z5;
    logits[quad_index(6u, quad)] = z6;
    logits[quad_index(7u, quad)] = z7;
    logits[quad_index(8u, quad)] = z8;
    logits[quad_index(9u, quad)] = z9;

    var answer = Answer(z0, vec4u(0u));
    answer = compare(answer, z1, 1u);
    answer = compare(answer, z2, 2u);
    answer = compare(answer, z3, 3u);
    answer = compare(answer, z4, 4u);
    answer = compare(answer, z5, 5u);
    answer = compare(answer, z6, 6u);
    answer = compare(answer, z7, 7u);
    answer = compare(answer, z8, 8u);
    answer = compare(answer, z9, 9u);

    // The largest logit becomes 0, so that no exponential overflows.
    let e0 = exp(z0 - answer.logit);
    let e1 = exp(z1 - answer.logit);
    let e2 = exp(z2 - answer.logit);
    let e3 = exp(z3 - answer.logit);
    let e4 = exp(z4 - answer.logit);
    let e5 = exp(z5 - answer.logit);
    let e6 = exp(z6 - answer.logit);
    let e7 = exp(z7 - answer.logit);
    let e8 = exp(z8 - answer.logit);
    let e9 = exp(z9 - answer.logit);
    let total = e0 + e1 + e2 + e3 + e4 + e5 + e6 + e7 + e8 + e9;

    let first = 4u * quad;
    let label = vec4u(
        labels[samples[first]],
        labels[samples[first + 1u]],
        labels[samples[first + 2u]],
        labels[samples[first + 3u]],
    );
    let counts = first + vec4u(0u, 1u, 2u, 3u) < vec4u(submission.samples);
    d_logits[quad_index(0u, quad)] = d_logit(e0 / total, label == vec4u(0u), counts);
    d_logits[quad_index(1u, quad)] = d_logit(e1 / total, label == vec4u(1u), counts);
    d_logits[quad_index(2u, quad)] = d_logit(e2 / total, label == vec4u(2u), counts);
    d_logits[quad_index(3u, quad)] = d_logit(e3 / total, label == vec4u(3u), counts);
    d_logits[quad_index(4u, quad)] = d_logit(e4 / total, label == vec4u(4u), counts);
    d_logits[quad_index(5u, quad)] = d_logit(e5 / total, label == vec4u(5u), counts);
    d_logits[quad_index(6u, quad)] = d_logit(e6 / total, label == vec4u(6u), counts);
    d_logits[quad_index(7u, quad)] = d_logit(e7 / total, label == vec4u(7u), counts);
    d_logits[quad_index(8u, quad)] = d_logit(e8 / total, label == vec4u(8u), counts);
    d_logits[quad_index(9u, quad)] = d_logit(e9 / total, label == vec4u(9u), counts);

    var z_label = z0;
    z_label = select(z_label, z1, label == vec4u(1u));
    z_label = select(z_label, z2, label == vec4u(2u));
    z_label = select(z_label, z3, label == vec4u(3u));
    z_label = select(z_label, z4, label == vec4u(4u));
    z_label = select(z_label, z5, label == vec4u(5u));
    z_label = select(z_label, z6, label == vec4u(6u));
    z_label = select(z_label, z7, label == vec4u(7u));
    z_label = select(z_label, z8, label == vec4u(8u));
    z_label = select(z_label, z9, label == vec4u(9u));
    let loss = select(vec4f(0.0), log(total) - (z_label - answer.logit), counts);
    add_losses(loss);
    let right = select(vec4u(0u), vec4u(1u), (answer.number == label) & counts);
    atomicAdd(&words[RIGHT], right.x + right.y + right.z + right.w);
    atomicAdd(&words[SAMPLES], min(4u, submission.samples - first));
}

// Four inputs, each over the samples of a quad.
struct Inputs {
    x0: vec4f,
    x1: vec4f,
    x2: vec4f,
    x3: vec4f,
}

fn weigh(x: Inputs, w: vec4f) -> vec4f {
    return w.x * x.x0 + w.y * x.x1 + w.z * x.x2 + w.w * x.x3;
}

// The first class with the largest logit.
struct Answer {
    logit: vec4f,
    number: vec4u,
}

fn compare(best: Answer, logit: vec4f, number: u32) -> Answer {
    let better = logit > best.logit;
    return Answer(
        select(best.logit, logit, better),
        select(best.number, vec4u(number), better),
    );
}

fn d_logit(probability: vec4f, is_label: vec4<bool>, counts: vec4<bool>) -> vec4f {
    return select(vec4f(0.0), select(probability, probability - 1.0, is_label), counts);
}

// Each loss is a partial of its own.
fn add_losses(loss: vec4f) {
    let q = quantize(loss, LOSS_SCALE);
    atomicAdd(&words[LOSS], bitcast<u32>(q.x + q.y + q.z + q.w));
    let largest = magnitude(loss);
    raise_word(LOSS_MAXIMUM, max(max(largest.x, largest.y), max(largest.z, largest.w)));
}
