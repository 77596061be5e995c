// zerorun_plan: the program that `zerorun plan` becomes. It plans a training without its program.
#include "base/program.h"
#include "config/check.h"
#include "plan/command_line.h"
#include "plan/model_shapes.h"
#include "plan/training_plan.h"

namespace {

int run(const zerorun::PlanCommand& command) {
  const std::string config = zerorun::config::read_config_file(command.config);
  const zerorun::ModelShapes shapes = command.model.empty() ? zerorun::shapes_of_size(command.parameters)
                                                            : zerorun::shapes_of_folder(command.model);
  zerorun::PlannedTraining training{.model = imagine(shapes)};
  training.options.hidden_size = shapes.hidden_size;
  training.options.tensor_plan = zerorun::TensorPlan();  // nothing is split: the shapes do not say how
  return print_plan(plan_training(std::move(training), config, command.config, command.request));
}

}  // namespace

int main(int argc, char** argv) {
  return zerorun::run_program([&] {
    const auto command = zerorun::parse_plan_command(argc, argv);
    return command ? run(*command) : 0;
  });
}
