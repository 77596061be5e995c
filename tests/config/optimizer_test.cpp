// Tests the optimizers that a config can name: their parameters, their defaults (those of the class that
// DeepSpeed uses), and the messages about optimizers that ZeroRun does not support.
#include <catch2/catch.hpp>
#include <string>

#include "config/check.h"
#include "config/key_table.h"
#include "config/key_words.h"
#include "tests/config/refusal.h"

using namespace zerorun;
using namespace zerorun::config;
using namespace zerorun::test;

namespace {

std::string optimizer_text(const std::string& type, const std::string& params) {
  return R"("optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}";
}

template <typename Optimizer>
Optimizer optimizer(const std::string& type, const std::string& params = "") {
  const Config config = parse_config(with(optimizer_text(type, params)), "conf", 1);
  REQUIRE(config.optimizer);
  REQUIRE(std::holds_alternative<Optimizer>(*config.optimizer));
  return std::get<Optimizer>(*config.optimizer);
}

const KeyFact& type_row() {
  const KeyFact* fact = find_key("optimizer.type");
  REQUIRE(fact);
  return *fact;
}

}  // namespace

TEST_CASE("optimizers: letter case matters for the types of torch.optim, but not for DeepSpeed's own types") {
  optimizer<AdagradConfig>("Adagrad");
  optimizer<AdagradConfig>("adagrad");
  optimizer<LionConfig>("LION");
  optimizer<RmspropConfig>("RMSprop");
  const auto found = refusals(with(optimizer_text("rmsprop", "")));
  REQUIRE(found.size() == 1);
  CHECK(found[0].remedy == "did you mean \"RMSprop\"?");
}

TEST_CASE("optimizers: Adagrad and RMSprop have the defaults of torch.optim") {
  const AdagradConfig adagrad = optimizer<AdagradConfig>("Adagrad");
  CHECK(adagrad.lr == 0.01);
  CHECK(adagrad.eps == 1e-10);
  CHECK(adagrad.weight_decay == 0);
  CHECK(adagrad.lr_decay == 0);
  CHECK(adagrad.initial_accumulator_value == 0);
  const RmspropConfig rmsprop = optimizer<RmspropConfig>("RMSprop");
  CHECK(rmsprop.lr == 0.01);
  CHECK(rmsprop.eps == 1e-8);
  CHECK(rmsprop.alpha == 0.99);
  CHECK(rmsprop.weight_decay == 0);
  CHECK(rmsprop.momentum == 0);
  CHECK(!rmsprop.centered);
}

TEST_CASE("optimizers: Lamb has the defaults of DeepSpeed") {
  const LambConfig lamb = optimizer<LambConfig>("Lamb");
  CHECK(lamb.lr == 1e-3);
  CHECK(lamb.beta2 == 0.999);
  CHECK(lamb.eps == 1e-8);
  CHECK(lamb.max_coeff == 10);
  CHECK(lamb.min_coeff == 0.01);
  CHECK(lamb.bias_correction);
  CHECK(!lamb.eps_inside_sqrt);
  const LambConfig other =
      optimizer<LambConfig>("lamb", R"("max_coeff": 0.3, "min_coeff": 0.1, "eps_inside_sqrt": true)");
  CHECK(other.max_coeff == 0.3);
  CHECK(other.min_coeff == 0.1);
  CHECK(other.eps_inside_sqrt);
}

TEST_CASE("optimizers: Muon has the defaults of DeepSpeed, and a learning rate for AdamW's parameters") {
  const MuonConfig muon = optimizer<MuonConfig>("Muon");
  CHECK(muon.lr == 0.02);
  CHECK(muon.adamw.lr == 3e-4);
  CHECK(muon.adamw.beta1 == 0.9);
  CHECK(muon.adamw.beta2 == 0.95);
  CHECK(muon.adamw.eps == 1e-10);
  CHECK(muon.momentum == 0.95);
  CHECK(muon.newton_schulz == NewtonSchulz::gram);
  CHECK(optimizer<MuonConfig>("Muon", R"("lr": 0.5)").adamw.lr == 0.5);
  const MuonConfig both =
      optimizer<MuonConfig>("Muon", R"("lr": 0.5, "muon_lr": 0.25, "ns_method": "standard")");
  CHECK(both.lr == 0.25);
  CHECK(both.adamw.lr == 0.5);
  CHECK(both.newton_schulz == NewtonSchulz::standard);
}

TEST_CASE("optimizers: Lion has the defaults of DeepSpeed") {
  const LionConfig lion = optimizer<LionConfig>("Lion");
  CHECK(lion.lr == 1e-3);
  CHECK(lion.beta1 == 0.9);
  CHECK(lion.beta2 == 0.999);
  CHECK(lion.weight_decay == 0);
}

TEST_CASE("optimizers: parameters are read into the Config") {
  const AdagradConfig adagrad = optimizer<AdagradConfig>(
      "Adagrad",
      R"("lr": 0.1, "eps": 1e-6, "weight_decay": 0.2, "lr_decay": 0.3, "initial_accumulator_value": 0.4)");
  CHECK(adagrad.lr == 0.1);
  CHECK(adagrad.eps == 1e-6);
  CHECK(adagrad.weight_decay == 0.2);
  CHECK(adagrad.lr_decay == 0.3);
  CHECK(adagrad.initial_accumulator_value == 0.4);
  const RmspropConfig rmsprop = optimizer<RmspropConfig>(
      "RMSprop",
      R"("lr": 0.1, "eps": 1e-6, "weight_decay": 0.2, "alpha": 0.9, "momentum": 0.8, "centered": true)");
  CHECK(rmsprop.lr == 0.1);
  CHECK(rmsprop.eps == 1e-6);
  CHECK(rmsprop.weight_decay == 0.2);
  CHECK(rmsprop.alpha == 0.9);
  CHECK(rmsprop.momentum == 0.8);
  CHECK(rmsprop.centered);
  const LionConfig lion =
      optimizer<LionConfig>("Lion", R"("lr": 1e-4, "betas": [0.95, 0.98], "weight_decay": 0.2)");
  CHECK(lion.lr == 1e-4);
  CHECK(lion.beta1 == 0.95);
  CHECK(lion.beta2 == 0.98);
  CHECK(lion.weight_decay == 0.2);
}

TEST_CASE("optimizers: \"auto\" that the program does not fill in is refused, whatever the type's default") {
  const auto found = refusals(with(optimizer_text("Adagrad", R"("lr": "auto", "eps": "auto")")));
  REQUIRE(found.size() == 2);
  CHECK(found[0].path == "optimizer.params.lr");
  CHECK(found[1].path == "optimizer.params.eps");
  const Config config = parse_config(with(optimizer_text("RMSprop", R"("lr": "auto")")), "conf",
                                     {.world_size = 1, .arguments = {{"optimizer.params.lr", 0.5}}});
  CHECK(std::get<RmspropConfig>(*config.optimizer).lr == 0.5);
}

TEST_CASE("optimizers: AMSGrad is supported; without torch_adam a note says that DeepSpeed lacks it") {
  for (const char* type : {"Adam", "AdamW"}) {
    CHECK(optimizer<AdamConfig>(type, R"("amsgrad": true)").amsgrad);
    CHECK(!optimizer<AdamConfig>(type, "").amsgrad);
    check_note(optimizer_text(type, R"("amsgrad": true)"),
               "optimizer.params.amsgrad: true works here; DeepSpeed accepts it only with torch_adam");
    const Config both =
        parse_config(with(optimizer_text(type, R"("amsgrad": true, "torch_adam": true)")), "conf", 1);
    CHECK(std::get<AdamConfig>(*both.optimizer).amsgrad);
    CHECK(told(both).empty());
  }
}

TEST_CASE("optimizers: the Config says if \"Adam\" means AdamW although the file does not say so") {
  CHECK(optimizer<AdamConfig>("Adam").silently_decoupled);
  CHECK(optimizer<AdamConfig>("adam", R"("torch_adam": true)").silently_decoupled);
  CHECK(!optimizer<AdamConfig>("Adam", R"("adam_w_mode": true)").silently_decoupled);
  CHECK(!optimizer<AdamConfig>("Adam", R"("adam_w_mode": false)").silently_decoupled);
  CHECK(!optimizer<AdamConfig>("AdamW").silently_decoupled);
}

TEST_CASE("optimizers: a parameter of another optimizer is refused at its place") {
  for (const auto& [type, parameter] :
       {std::pair("Lion", "eps"), std::pair("Adagrad", "betas"), std::pair("RMSprop", "nesterov"),
        std::pair("SGD", "alpha"), std::pair("Lion", "amsgrad"), std::pair("AdamW", "lr_decay"),
        std::pair("RMSprop", "initial_accumulator_value"), std::pair("Adagrad", "centered"),
        std::pair("Lion", "momentum")}) {
    INFO(type << " with " << parameter);
    const auto found = refusals(with(optimizer_text(type, "\"" + std::string(parameter) + "\": 0")));
    REQUIRE(found.size() == 1);
    CHECK(found[0].path == "optimizer.params." + std::string(parameter));
    CHECK(found[0].expected == "a parameter of " + std::string(type));
  }
}

TEST_CASE("optimizers: values out of their range are refused") {
  for (const auto& [type, params] :
       {std::pair("RMSprop", R"("alpha": 1.1)"), std::pair("RMSprop", R"("alpha": -0.1)"),
        std::pair("RMSprop", R"("momentum": -0.1)"), std::pair("Adagrad", R"("lr_decay": -1)"),
        std::pair("Adagrad", R"("initial_accumulator_value": -1)"),
        std::pair("Lion", R"("betas": [0.9, 1])")}) {
    INFO(type << " with " << params);
    CHECK(refusals(with(optimizer_text(type, params))).size() == 1);
  }
}

TEST_CASE(
    "optimizers: a type that is not supported is refused, with the name of the nearest supported type") {
  for (const auto& [type, nearest] :
       {std::pair("OneBitAdam", "Adam"), std::pair("zerooneadam", "Adam"), std::pair("MuSGD", "SGD"),
        std::pair("MuAdamW", "AdamW"), std::pair("Rprop", "RMSprop")}) {
    const Refusal found =
        refusal_of({R"("optimizer": {"type": @")" + std::string(type) + "\"}", "optimizer.type", "", "", ""});
    CHECK(found.expected == in_words(supported_choices(type_row())));
    CHECK(found.found == "\"" + std::string(type) + "\", which ZeroRun does not support");
    CHECK(found.remedy == "write \"" + std::string(nearest) + "\", the closest one that is supported");
  }
  const CheckedConfig checked = check_config(with(optimizer_text("NAdam", "")), "conf");
  REQUIRE(checked.diagnostics.messages().size() == 1);
  CHECK(checked.refused());
  CHECK(checked.diagnostics.messages()[0].mistake.remedy ==
        "write \"Adam\", the closest one that is supported");
}

TEST_CASE("optimizers: a config of each supported type has the optimizer of this name") {
  for_each_word(supported_choices(type_row()), [&](std::string_view type) {
    INFO(type);
    const Config config = parse_config(with(optimizer_text(std::string(type), "")), "conf", 1);
    REQUIRE(config.optimizer);
    // Adam without adam_w_mode is AdamW.
    CHECK(name_of(*config.optimizer) == (type == "Adam" ? "AdamW" : std::string(type)));
  });
  const Config coupled = parse_config(with(optimizer_text("Adam", R"("adam_w_mode": false)")), "conf", 1);
  CHECK(name_of(coupled.optimizer.value()) == std::string("Adam"));
}

TEST_CASE("optimizers: each type that is not supported has a nearest type that is supported") {
  const std::string supported = supported_choices(type_row());
  for_each_word(type_row().unsupported_choices, [&](std::string_view word) {
    INFO(word);
    CHECK(has_word(supported, nearest_supported(type_row(), word)));
  });
  for_each_word(type_row().nearest_choices, [&](std::string_view pair) {
    INFO(pair);
    CHECK(has_word(type_row().choices, pair.substr(0, pair.find(':'))));
  });
}
