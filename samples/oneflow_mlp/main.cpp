// oneflow_mlp: an ordinary training program (MLP, SGD, cross entropy) to which one call of enable_zero() adds
// ZeRO, as in OneFlow. Training and prediction alternate on the partitioned parameters.
//
//   zerorun --num_gpus 2 oneflow_mlp [STAGE]
#include <torch/torch.h>
#include <zerorun/zerorun.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  return zerorun::run_program([&] {
    const int stage = argc > 1 ? std::stoi(argv[1]) : 2;
    const auto ranks = zerorun::connect();
    torch::manual_seed(1);
    torch::nn::Sequential model(torch::nn::Linear(256, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
    torch::optim::SGD optimizer(model->parameters(), 1e-1);
    const auto zero = zerorun::enable_zero(*model, optimizer, stage, ranks);

    torch::manual_seed(100 + ranks->rank());
    const auto device = zero->engine().device();
    const at::Tensor x = torch::randn({128, 256}, device);
    const at::Tensor y = torch::randint(10, {128}, torch::TensorOptions(device).dtype(torch::kLong));
    for (int step = 1; step <= 40; ++step) {
      model->train();
      zero->zero_grad();
      const at::Tensor loss = torch::nn::functional::cross_entropy(model->forward(x), y);
      loss.backward();
      zero->step();
      if (step % 10 != 0) continue;

      model->eval();
      torch::NoGradGuard no_grad;
      const at::Tensor right = model->forward(x).argmax(1).eq(y).sum();
      if (ranks->rank() == 0)
        std::printf("step %d: loss %.4f, %ld of 128 right\n", step, loss.item<double>(),
                    static_cast<long>(right.item<int64_t>()));
    }
    return 0;
  });
}
