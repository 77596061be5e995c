// Keys of the optimizer and its hyperparameters.
#include "config/keys/tables.h"

namespace zerorun::config::keys {

constexpr std::string_view all_types =
    "Adam AdamW SGD Lamb Adagrad Lion Muon OneBitAdam OneBitLamb ZeroOneAdam MuAdam MuAdamW MuSGD Adadelta "
    "Adafactor Adamax ASGD LBFGS NAdam RAdam RMSprop Rprop SparseAdam";
constexpr std::string_view unsupported_types =
    "OneBitAdam OneBitLamb ZeroOneAdam MuAdam MuAdamW MuSGD Adadelta Adafactor Adamax ASGD LBFGS NAdam RAdam "
    "Rprop SparseAdam";
constexpr std::string_view nearest_types =
    "OneBitAdam:Adam OneBitLamb:Lamb ZeroOneAdam:Adam MuAdam:Adam MuAdamW:AdamW MuSGD:SGD Adadelta:RMSprop "
    "Adafactor:AdamW Adamax:Adam ASGD:SGD LBFGS:AdamW NAdam:Adam RAdam:Adam Rprop:RMSprop SparseAdam:Adam";
// The types that DeepSpeed implements itself. It matches their names case-insensitively, and looks up all
// other types in torch.optim by their exact names.
constexpr std::string_view types_in_any_case =
    "Adam AdamW Lamb Adagrad Lion Muon OneBitAdam OneBitLamb ZeroOneAdam MuAdam MuAdamW MuSGD";
constexpr std::string_view types_with_betas =
    "Adam AdamW Lamb Lion Muon OneBitAdam OneBitLamb ZeroOneAdam MuAdam MuAdamW Adamax NAdam RAdam "
    "SparseAdam";
constexpr std::string_view types_with_eps =
    "Adam AdamW Lamb Muon OneBitAdam OneBitLamb ZeroOneAdam MuAdam MuAdamW Adamax NAdam RAdam SparseAdam "
    "Adagrad Adadelta RMSprop Adafactor";

/// Completes the row of a hyperparameter that only OneBitAdam, OneBitLamb or ZeroOneAdam has. `types` lists
/// those of the three that have it.
constexpr KeyFact of_removed(const KeyFact& parameter, std::string_view types) {
  return parameter.for_types(types).not_supported("its optimizer is not supported").removed_from_deepspeed();
}

static constexpr KeyFact optimizer_rows[] = {
    section("optimizer", "the optimizer that the engine creates; leave it out if the program passes its own")
        .or_null(),
    choice(".type", "", all_types,
           "name of the optimizer; Adam means AdamW unless adam_w_mode is false; OneBitAdam, OneBitLamb and "
           "ZeroOneAdam were removed from DeepSpeed after 0.19.6")
        .in_any_case(types_in_any_case)
        .unsupported(unsupported_types)
        .nearest(nearest_types)
        .advise("write Adam, AdamW, SGD, Adagrad, RMSprop, Lion, Lamb or Muon"),
    section("optimizer.params", "hyperparameters of the optimizer"),
    number(".lr", "0.001",
           "learning rate; the default is 0.01 for Adagrad and RMSprop, 0.02 for Muon's matrices and 0.0003 "
           "for its other parameters")
        .least(0)
        .filled_by(program)
        .advise("write the learning rate, such as 1e-3"),
    numbers(".betas", "[0.9, 0.999]",
            "decay rates of the running averages of the gradient and of its square; the default is [0.9, "
            "0.95] for Muon")
        .of_length(2)
        .from_below(0, 1)
        .for_types(types_with_betas)
        .filled_by(program)
        .advise("write two numbers such as [0.9, 0.999]"),
    number(".eps", "1e-08",
           "added to the denominator of the update; the default is 1e-10 for Adagrad and Muon")
        .least(0)
        .for_types(types_with_eps)
        .filled_by(program)
        .advise("write a small number such as 1e-8"),
    number(".weight_decay", "0.0",
           "decoupled from the gradient in AdamW, Lion, Lamb and Muon, added to it (L2) in the others; the "
           "default is 0.01 for AdamW with torch_adam")
        .least(0)
        .filled_by(program)
        .advise("write the weight decay, 0 for none"),
    boolean(".bias_correction", "true", "correct the bias of the running averages, which start at 0")
        .for_types("Adam AdamW Lamb OneBitAdam OneBitLamb ZeroOneAdam"),
    boolean(".adam_w_mode", "true", "false: Adam with L2 weight decay instead of AdamW")
        .for_types("Adam AdamW"),
    boolean(".torch_adam", "false", "use the defaults of torch.optim").for_types("Adam AdamW"),
    boolean(".amsgrad", "false", "divide by the maximum of all past averages of squared gradients")
        .for_types("Adam AdamW"),
    boolean(".set_grad_none", "true", "release gradients instead of setting them to zero")
        .no_effect("the engine releases gradients, not the optimizer"),
    boolean(".fp32_optimizer_states", "true", "keep optimizer states in fp32")
        .refused("bf16.bf16_optimizer_states decides, also with offload"),
    number(".momentum", "0.0", "momentum factor; the default is 0.95 for Muon")
        .least(0)
        .for_types("SGD Muon MuSGD RMSprop"),
    number(".muon_lr", "", "learning rate of the matrices; by default lr").least(0).for_types("Muon"),
    number(".adam_lr", "", "learning rate of the parameters that AdamW updates; by default lr")
        .least(0)
        .for_types("Muon"),
    choice(".ns_method", "\"gram\"", "gram standard",
           "variant of the Newton-Schulz iteration: on the Gram matrix of the short side, or on the matrix")
        .for_types("Muon")
        .advise("write \"gram\" or \"standard\""),
    boolean(".per_head_muon", "false",
            "orthogonalize the heads of attention projections one by one; Python programs' heads are those "
            "of the model's config, C++ programs give them to initialize() (attention_heads)")
        .for_types("Muon"),
    number(".max_coeff", "10.0", "upper bound of the trust ratio").least(0).for_types("Lamb OneBitLamb"),
    number(".min_coeff", "0.01", "lower bound of the trust ratio").least(0).for_types("Lamb OneBitLamb"),
    boolean(".eps_inside_sqrt", "false", "add eps before the square root")
        .for_types("Lamb OneBitAdam OneBitLamb ZeroOneAdam"),
    of_removed(integer(".freeze_step", "100000", "number of steps before gradients are compressed"),
               "OneBitAdam OneBitLamb"),
    of_removed(boolean(".cuda_aware", "false", "whether MPI can read GPU memory"),
               "OneBitAdam OneBitLamb ZeroOneAdam"),
    of_removed(text(".comm_backend_name", "\"nccl\"", "communication backend for compressed gradients"),
               "OneBitAdam OneBitLamb ZeroOneAdam"),
    of_removed(number(".coeff_beta", "0.9", "decay rate of the averaged trust ratios"), "OneBitLamb"),
    of_removed(number(".factor_max", "4.0", "largest scaling factor"), "OneBitLamb"),
    of_removed(number(".factor_min", "0.5", "smallest scaling factor"), "OneBitLamb"),
    of_removed(number(".factor_threshold", "0.1", "maximum change of a scaling factor per step"),
               "OneBitLamb"),
    of_removed(integer(".var_freeze_step", "100000", "step from which the variance is frozen"),
               "ZeroOneAdam"),
    of_removed(integer(".var_update_scaler", "16", "growth of the interval between updates of the variance"),
               "ZeroOneAdam"),
    of_removed(integer(".local_step_scaler", "32678", "growth of the interval between synchronizations"),
               "ZeroOneAdam"),
    of_removed(integer(".local_step_clipper", "16", "longest interval between synchronizations"),
               "ZeroOneAdam"),
    number(".max_grad_norm", "", "a key of old DeepSpeed versions")
        .replaced_by("write gradient_clipping at the top level"),
    boolean(".fused", "false", "use one fused kernel")
        .or_null()
        .no_effect("every optimizer of ZeroRun is one fused pass"),
    number(".dampening", "0.0", "dampening of the momentum").for_types("SGD MuSGD"),
    boolean(".nesterov", "false", "use Nesterov momentum").for_types("SGD MuSGD"),
    number(".alpha", "0.99", "decay rate of the running average of squared gradients")
        .range_of(0, 1)
        .for_types("RMSprop"),
    boolean(".centered", "false", "normalize the gradient by an estimate of its variance")
        .for_types("RMSprop"),
    number(".lr_decay", "0.0", "step t has the learning rate lr / (1 + (t - 1) * lr_decay)")
        .least(0)
        .for_types("Adagrad"),
    number(".initial_accumulator_value", "0.0", "initial value of the sums of squared gradients")
        .least(0)
        .for_types("Adagrad"),
    boolean("optimizer.legacy_fusion", "false", "use an old fused kernel")
        .no_effect("every optimizer of ZeroRun is one fused pass"),
};

const std::span<const KeyFact> optimizer = optimizer_rows;

}  // namespace zerorun::config::keys
